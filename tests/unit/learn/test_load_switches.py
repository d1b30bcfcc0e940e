"""Both sets of names for the switches of ``load_state_dict``."""

import importlib
import inspect
import pkgutil

import pytest

import cadenza.learn
from cadenza.core.errors import InputError
from cadenza.learn.callback import OTHER_NAMES, Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin

#: Those of modules, whose ``load_state_dict`` is torch's, have no switches.
SWITCHES = ("load_network", "load_optimizer", "load_hparams")


class Recorder(Callback):
    def load_state_dict(
        self, state_dict, load_network=True, load_optimizer=True, load_hparams=True
    ):
        self.got = (state_dict, load_network, load_optimizer, load_hparams)


def loading_classes():
    """Yield every class of the engine whose ``load_state_dict`` has the switches."""
    for info in pkgutil.walk_packages(cadenza.learn.__path__, "cadenza.learn."):
        if info.name.endswith("wb_logger"):  # needs an extra
            continue
        module = importlib.import_module(info.name)
        for found in vars(module).values():
            if inspect.isclass(found) and found.__module__ == info.name:
                load = getattr(found, "load_state_dict", None)
                if load is None or getattr(found, "_is_protocol", False):
                    continue
                if "load_network" in inspect.signature(load).parameters:
                    yield found


def test_every_loading_class_takes_both_names_in_the_promised_order():
    classes = list(loading_classes())
    assert len(classes) > 25
    for each in classes:
        parameters = inspect.signature(each.load_state_dict).parameters
        assert tuple(parameters)[2:5] == SWITCHES, each
        assert [parameters[name].default for name in SWITCHES] == [True] * 3, each
        for other in OTHER_NAMES:
            assert parameters[other].kind is inspect.Parameter.KEYWORD_ONLY, each
            assert parameters[other].default is None, each


@pytest.mark.parametrize(
    ("arguments", "keywords", "switches"),
    [
        ((), {}, (True, True, True)),
        ((), {"load_weights": False}, (False, True, True)),
        ((), {"load_optimizers": False}, (True, False, True)),
        ((), {"load_weights": None, "load_optimizers": None}, (True, True, True)),
        ((False,), {"load_optimizers": False, "load_hparams": False}, (False, False, False)),
        ((), {"load_network": False, "load_optimizers": False}, (False, False, True)),
        ((False, True, False), {}, (False, True, False)),
    ],
)
def test_other_names_mean_the_same_switches(arguments, keywords, switches):
    recorder = Recorder()
    recorder.load_state_dict({"a": 1}, *arguments, **keywords)
    assert recorder.got == ({"a": 1}, *switches)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {"load_network": True, "load_weights": True}, "load_network or load_weights"),
        ((True,), {"load_weights": True}, "load_network or load_weights"),
        ((True, True), {"load_optimizers": False}, "load_optimizer or load_optimizers"),
    ],
)
def test_one_switch_by_two_names_is_refused(arguments, keywords, message):
    with pytest.raises(InputError, match=f"Recorder.load_state_dict: expected {message}.*both"):
        Recorder().load_state_dict({}, *arguments, **keywords)


def test_subclass_that_passes_its_switches_on_is_translated_once():
    class Further(LoggingMixin, Recorder):
        def load_state_dict(self, state_dict, *switches, **named):
            super().load_state_dict(state_dict, *switches, **named)

    further = Further()
    further.load_state_dict(further.state_dict(), load_weights=False, load_hparams=False)
    assert further.got[1:] == (False, True, False)
    assert list(inspect.signature(Further.load_state_dict).parameters) == [
        "self", "state_dict", "switches", "load_weights", "load_optimizers", "named"
    ]  # fmt: skip
