"""Implement the part of msgspec's interface that a training process uses, with the standard library alone.

Structs are dataclasses, and JSON uses the `json` module. Files and messages are the same as with msgspec: NaN and
infinity become null, and wrong types are refused. Bounds (`Meta`) are not checked, because a training process reads
only records of its own job.
"""

from __future__ import annotations

import dataclasses
import json as _json
import math
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import dataclass_transform
else:  # Python 3.10 does not have it

    def dataclass_transform(**_options: Any) -> Callable[[Any], Any]:
        return lambda kind: kind


__all__ = ["DecodeError", "Meta", "MsgspecError", "Struct", "ValidationError", "convert", "field", "json", "structs"]


class MsgspecError(Exception):
    """Base of all errors, as in msgspec."""


class DecodeError(MsgspecError):
    """The data is not JSON."""


class ValidationError(DecodeError):
    """The data is JSON, but not of the requested type."""


class Meta:
    """Accept the bounds of annotations without checking them."""

    def __init__(self, **bounds: Any) -> None:
        self.bounds = bounds


#: Declares the default of a struct's field, as `msgspec.field` does.
field = dataclasses.field


@dataclass_transform(kw_only_default=False)
class Struct:
    """Make a dataclass of each subclass. Options other than `frozen` and `kw_only` have no effect."""

    def __init_subclass__(cls, *, frozen: bool = False, kw_only: bool = False, **_options: Any) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only)(cls)


def convert(value: Any, type: Any) -> Any:  # noqa: A002  # as in msgspec
    """Convert a JSON value to an object of this type.

    Raises:
        ValidationError: the value has a different type.
    """
    if dataclasses.is_dataclass(type):
        return _struct(value, type)
    origin, arguments = typing.get_origin(type), typing.get_args(type)
    if origin is typing.Annotated:
        return convert(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(value, arguments)
    if origin is typing.Literal:
        return _checked(value, fits=value in arguments, wanted=type)
    return _scalar(value, type) if origin is None else _container(value, type, origin, arguments)


def _container(value: Any, wanted: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is dict:
        _checked(value, fits=isinstance(value, dict), wanted=wanted)
        return {convert(key, arguments[0]): convert(item, arguments[1]) for key, item in value.items()}
    return origin(_elements(value, wanted, arguments))


def _elements(value: Any, wanted: Any, arguments: tuple[Any, ...]) -> list[Any]:
    _checked(value, fits=isinstance(value, list | tuple), wanted=wanted)
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        return [convert(item, arguments[0]) for item in value]
    _checked(value, fits=len(value) == len(arguments), wanted=wanted)
    return [convert(item, kind) for item, kind in zip(value, arguments, strict=True)]


def _scalar(value: Any, wanted: Any) -> Any:
    """Return the value if it has the wanted type (an int counts as float), else raise ValidationError."""
    if wanted is Any:
        return value
    if wanted is None or wanted is types.NoneType:
        return _checked(value, fits=value is None, wanted=wanted)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    fits = isinstance(value, wanted) and (wanted is not int or not isinstance(value, bool))
    return _checked(value, fits=fits, wanted=wanted)


def _struct(value: Any, wanted: Any) -> Any:
    """Return the fields of a dict as an instance of the dataclass `wanted`; unknown fields are ignored."""
    if isinstance(value, wanted):
        return value
    _checked(value, fits=isinstance(value, dict), wanted=wanted)
    hints = typing.get_type_hints(wanted)
    known = {name: convert(item, hints[name]) for name, item in value.items() if name in hints}
    try:
        return wanted(**known)
    except TypeError as error:
        raise ValidationError(f"{wanted.__name__}: {error}") from error


def _first_that_fits(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Return the value, converted to the first of these types that accepts it."""
    for kind in kinds:
        try:
            return convert(value, kind)
        except ValidationError:
            continue
    raise ValidationError(f"{value!r:.50} is none of {', '.join(map(str, kinds))}")


def _checked(value: Any, *, fits: bool, wanted: Any) -> Any:
    if not fits:
        raise ValidationError(f"{value!r:.50} is not of type {getattr(wanted, '__name__', wanted)}")
    return value


def _plain(value: Any) -> Any:
    """Return a value that the `json` module can write, without NaN and infinity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class json:  # noqa: N801  # as in msgspec
    """Encode and decode, as the module `msgspec.json` does."""

    @staticmethod
    def encode(value: Any) -> bytes:
        """Return the value as JSON on one line."""
        text = _json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")

    @staticmethod
    def format(text: bytes, *, indent: int = 2) -> bytes:
        """Return the same JSON with this many spaces per level."""
        return _json.dumps(_json.loads(text), ensure_ascii=False, indent=indent).encode()

    @staticmethod
    def decode(text: bytes | str, *, type: Any = Any) -> Any:  # noqa: A002
        """Decode JSON as an object of this type.

        Raises:
            DecodeError: the data is not JSON, or has a different type.
        """
        try:
            value = _json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DecodeError(str(error)) from error
        return convert(value, type)


class structs:  # noqa: N801  # as in msgspec
    """Functions of the module `msgspec.structs`."""

    @staticmethod
    def replace(struct: Any, **changes: Any) -> Any:
        """Return a copy with these fields changed."""
        return dataclasses.replace(struct, **changes)

    @staticmethod
    def asdict(struct: Any) -> dict[str, Any]:
        """Return the fields by name; nested structs stay structs."""
        return {field.name: getattr(struct, field.name) for field in dataclasses.fields(struct)}
