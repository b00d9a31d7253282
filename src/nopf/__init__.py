"""nopf: particle filters that learn where to put their particles."""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

# What there is stands in __init__.pyi. A part is imported when it is first asked for, so that the
# command can answer before JAX is there.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # A module that is imported does not take the place of the function of its name: simulate.
        if not (isinstance(value, ModuleType) and name in __all__ and name not in ROOMS):
            super().__setattr__(name, value)


ROOMS = ("benchmarks", "metrics")
sys.modules[__name__].__class__ = _Package
