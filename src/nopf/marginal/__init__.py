"""Models of which some states are solved exactly."""

from nopf.marginal.marginalise import marginalise
from nopf.marginal.model import Marginal, MarginalisedModel

__all__ = ["Marginal", "MarginalisedModel", "marginalise"]
