"""Shows the keyword arguments of a function that receives them as one `TypedDict`.

Type checkers know them by `Unpack`; `help`, IPython and notebooks read the signature.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])


def with_keywords_of(other: Callable[..., Any]) -> Callable[[Function], Function]:
    """Make the signature of a function list the keyword arguments of another one.

    >>> def draw(figure, *, colour="blue"): ...
    >>> @with_keywords_of(draw)
    ... def draw_twice(figure, **keywords):
    ...     draw(figure, **keywords)
    >>> inspect.signature(draw_twice)
    <Signature (figure, *, colour='blue')>
    """

    def apply(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        names = {each.name for each in own}
        more = [
            each.replace(kind=each.KEYWORD_ONLY)
            for each in inspect.signature(other).parameters.values()
            if each.name not in names
        ]
        parameters = [*own, *more]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return apply
