"""The selectors with gates by the names that command lines and job files call their methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dufs_core.errors import did_you_mean, invalid_choice
from dufs_core.selection.decoys.dufs import DUFS
from dufs_core.selection.gated_selector import GatedSelector
from dufs_core.selection.gates.gated_laplacian import GatedLaplacian
from dufs_core.selection.settings import flat_settings, set_flat

METHODS: dict[str, type[GatedSelector]] = {"decoys": DUFS, "gates": GatedLaplacian}


def method_of(selector: GatedSelector) -> str:
    """The name of a selector's method."""
    return next(name for name, kind in METHODS.items() if isinstance(selector, kind))


def make_selector(method: str | None, preset: str | None, settings: Mapping[str, Any]) -> GatedSelector:
    """The selector of a method, by default "decoys", or of a preset of the gates, with `flat_settings` on top.

    Raises ValueError for a method or preset that there is not, for a preset of decoys, and for a parameter that the
    selector has not.
    """
    method = method or ("decoys" if preset is None else "gates")
    if not isinstance(method, str) or method not in METHODS:
        raise invalid_choice("method", method, METHODS)
    selector: GatedSelector = METHODS[method]()
    if preset is not None:
        if method != "gates":
            raise ValueError(f'preset {preset!r} has settings of method "gates", and the method is {method!r}')
        selector = GatedLaplacian.preset(preset)
    known = flat_settings(selector)
    for name in settings:
        if name not in known:
            others = [other for other, kind in METHODS.items() if name in flat_settings(kind())]
            hint = f': it is one of method "{others[0]}"' if others else did_you_mean(name, known)
            raise ValueError(f'method "{method}" has no parameter {name!r}' + hint)
    set_flat(selector, settings)
    return selector
