"""Exit codes: one number per kind of outcome, shared by every command."""

from enum import IntEnum, unique


@unique
class ExitCode(IntEnum):
    """What the number a command ends with means."""

    OK = 0
    #: A verification or comparison ran and found a failing check, or there is no store of runs.
    CHECK_FAILED = 1
    #: Wrong arguments, missing file, unknown name, unreadable configuration.
    USAGE = 2
    #: Training finished but the learning check did not pass, or a log holds no final safety record.
    LEARNING_CHECK = 3
    #: The working tree has changes that the command refuses to work from.
    DIRTY_TREE = 7
    #: Safety audit: the conformal margin sits at its limit.
    AUDIT_SATURATED = 8
    #: Safety audit: the conformal margin never adapted.
    AUDIT_STUCK = 9
    #: A checkpoint or result file is missing, damaged or was tampered with.
    DAMAGED_DATA = 10
    #: The file system refused: disk full, no permission, path outside its root.
    STORAGE = 11
    #: Input numbers are malformed: wrong shape, not finite.
    BAD_INPUT = 12
    #: Something else must be done first; the message says what.
    NOT_READY = 13
    #: An optional dependency is not installed; the message names the extra.
    MISSING_EXTRA = 14
    #: Some cells of an evaluation failed; the others are kept.
    INCOMPLETE = 15
    #: The job does not fit into memory; the message says what to lower.
    OUT_OF_MEMORY = 16
    #: A job of a loop failed in every attempt; the run can be resumed.
    JOB_FAILED = 17
    #: The constitution refuses a command; the message names the rule.
    REFUSED = 18
    #: Stopped as its terminal was closed (SIGHUP); as INTERRUPTED.
    HUNG_UP = 129
    #: Stopped by the user; run again with --resume, or resume the loop, to go on.
    INTERRUPTED = 130
    #: Whoever read the output has left, as `| head` does; what was asked for is done.
    OUTPUT_CLOSED = 141
    #: Stopped by SIGTERM; as INTERRUPTED.
    TERMINATED = 143
