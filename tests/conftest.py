"""Every test runs with shapes checked at run time and silent broadcasting forbidden."""

from jaxtyping import install_import_hook

with install_import_hook("nopf", "beartype.beartype"):
    import nopf  # noqa: F401

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
