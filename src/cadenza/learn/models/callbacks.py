"""The callbacks of model-based training, gathered under one name."""

from cadenza.learn.models.batch_sampler import BatchSampler
from cadenza.learn.models.collector import ModelBasedCollector
from cadenza.learn.models.model_loss import ModelLoss
from cadenza.learn.models.progress_check import LossProgressCheck

__all__ = ["BatchSampler", "LossProgressCheck", "ModelBasedCollector", "ModelLoss"]
