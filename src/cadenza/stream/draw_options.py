"""How chunks are drawn: which windows there are, how likely each is, and what short ones mean."""

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from cadenza.core.checks import checked_flag
from cadenza.core.errors import ConfigurationError, InputError

SamplingMode = Literal["episode", "segment", "boundary"]
Weighting = Literal["episode", "window", "step"]
Short = Literal["exclude", "pad", "pad_end", "error"]

#: Choices of ``short`` that fill chunks up.
PADDING: Final = ("pad", "pad_end")
#: Choices of each option.
_CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "sampling_mode": get_args(SamplingMode),
    "weighting": get_args(Weighting),
    "short": get_args(Short),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOptions:
    """Distribution of the drawn chunks.

    A *run* is what a chunk lies in: an episode, or in ``sampling_mode="segment"`` the steps of one
    segment. A *window* is a run's stretch of as many steps as a chunk has.

    Attributes:
        sampling_mode: ``"episode"`` takes every window of an episode, ``"segment"`` those inside
            one segment, ``"boundary"`` those of an episode in which ``segment_id`` changes.
        weighting: ``"episode"`` draws an episode, then one of its windows; ``"window"`` makes every
            window of the store equally likely; ``"step"`` makes every step of the runs equally
            likely to be covered, for which windows may hang over the ends of their run.
        short: Runs shorter than a chunk: ``"exclude"`` leaves them out, ``"pad"`` fills the chunk
            up, ``"error"`` refuses to draw. With ``"pad_end"`` every step of a run begins a window,
            and those that hang over the run's end are filled up there.
        stratified: Draw every episode once before one is repeated within a call.
        success: Draw only from episodes that succeeded (True) or failed (False); None from all.

    Steps outside the run repeat its nearest step; the mask of the draw tells them apart.
    """

    sampling_mode: SamplingMode = "episode"
    weighting: Weighting = "episode"
    short: Short = "exclude"
    stratified: bool = False
    success: bool | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                raise ConfigurationError(
                    f"DrawOptions.{name}: expected one of {list(choices)}, got {value!r}."
                )
        checked_flag("DrawOptions.stratified", self.stratified)
        if self.success is not None:
            checked_flag("DrawOptions.success", self.success)
        if self.weighting == "step" and self.short == "pad_end":
            raise ConfigurationError(
                "DrawOptions: expected weighting 'episode' or 'window' with short 'pad_end', got "
                "'step', for which windows hang over both ends."
            )
        if self.weighting == "step" and self.sampling_mode == "boundary":
            raise ConfigurationError(
                "DrawOptions: expected weighting 'episode' or 'window' with sampling_mode "
                "'boundary', got 'step'; steps far from a boundary lie in no such window."
            )
        if self.stratified and self.weighting != "episode":
            raise ConfigurationError(
                "DrawOptions: expected weighting 'episode' with stratified, got "
                f"{self.weighting!r}; strata draw every episode equally often."
            )

    @property
    def may_mask(self) -> bool:
        """Whether a chunk may have steps outside its run."""
        return self.weighting == "step" or self.short in PADDING

    def check_chunk(self, c: int) -> None:
        """Refuse chunks that the mode cannot have.

        Raises:
            InputError: ``c`` is too small.
        """
        least = 2 if self.sampling_mode == "boundary" else 1
        if c < least:
            raise InputError(
                f"SlotReader.draw: expected chunks of at least {least} steps with sampling_mode "
                f"{self.sampling_mode!r}, got {c}."
            )


#: An episode, then an offset.
DEFAULT_OPTIONS: Final = DrawOptions()
