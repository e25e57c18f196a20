"""Every error this package raises, in one tree.

::

    MetainferError
    ├── SettingsError      a setting has a value that is not allowed            (also a ValueError)
    ├── StrategyError      a strategy cannot be read, or cannot be applied here (also a ValueError)
    ├── ModelError         a model cannot be read or described
    ├── RewriteError       a graph rewrite could not be carried out
    │   └── NotRewritten   there is nothing to rewrite, or the model must not be
    ├── InputsError        no usable inputs to measure and verify with          (also a ValueError)
    ├── CacheError         the strategy cache cannot be read or written
    ├── RecordError        records of trials cannot be read or written
    ├── LearningError      a model cannot be trained, read or run, or what it needs is not installed
    ├── ProviderError      an execution provider cannot be registered or offers no device
    └── TrialError         a trial could not be carried out
        ├── TrialTimeout   it did not end before its deadline
        └── TrialCrashed   its process died, or ate too much memory

None of them reaches a caller of :class:`ort_metainfer.InferenceSession` unless ``strict`` is set: there each becomes
one warning and a plain onnxruntime session. Errors that onnxruntime itself raises for the caller's own mistakes (a
missing file, a bad model, a bad provider name) are raised unchanged and are not part of this tree.
"""

__all__ = [
    "CacheError",
    "InputsError",
    "LearningError",
    "MetainferError",
    "ModelError",
    "NotRewritten",
    "ProviderError",
    "RecordError",
    "RewriteError",
    "SettingsError",
    "StrategyError",
    "TrialCrashed",
    "TrialError",
    "TrialTimeout",
]


class MetainferError(Exception):
    """Root of every error raised by this package."""


class SettingsError(MetainferError, ValueError):
    """A setting has a value that is not allowed; the message names its source and the values allowed."""


class StrategyError(MetainferError, ValueError):
    """A strategy cannot be read, or cannot be applied here; the message names the file and the field."""


class ModelError(MetainferError):
    """A model cannot be read or described; the message names it."""


class RewriteError(MetainferError):
    """A graph rewrite could not be carried out; the message names the model, the rewrite and the node."""


class NotRewritten(RewriteError):
    """The rewrites leave this model as it is, and would again; the message says why."""


class InputsError(MetainferError, ValueError):
    """There are no usable inputs to measure and verify with; the message says what was given and what is expected."""


class CacheError(MetainferError):
    """The strategy cache cannot be read or written; the message names the file."""


class RecordError(MetainferError):
    """Records cannot be read, written or are none; the message names the file and what is wrong."""


class LearningError(MetainferError):
    """A learned model cannot be trained, read or run; the message names what is missing and what to do."""


class ProviderError(MetainferError):
    """An execution provider cannot be registered, or offers no device; the message says what to install or change."""


class TrialError(MetainferError):
    """A trial could not be carried out; the message says at which step."""


class TrialTimeout(TrialError):
    """A trial did not end before its deadline; its process was killed."""


class TrialCrashed(TrialError):
    """A trial's process died or ate too much memory; the message carries its exit status and last words."""
