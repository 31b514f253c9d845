"""KMIFQE: in-sample fitted Q evaluation with a learned kernel bandwidth and metric."""

from kmifqe.estimators.kmifqe.algorithm import KMIFQEState, kmifqe
from kmifqe.estimators.kmifqe.config import KMIFQEConfig

__all__ = ["KMIFQEConfig", "KMIFQEState", "kmifqe"]
