"""A section of a settings file: strict, frozen, and each key told once.

`key` takes a key's default, its meaning, and the rules of when it can act; the type and its bounds
are the annotation's. Documents and checks are made from these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import core_schema

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """An unknown key is an error.

    `NEVER_EMPTY`: the keys that need a value where they stand; any other one without a value is as
    one left out. None: nothing is left out, and a type that takes no null refuses it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    NEVER_EMPTY: ClassVar[frozenset[str] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _empty_is_left_out(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or cls.NEVER_EMPTY is None:
            return data
        stay = cls.NEVER_EMPTY | (data.keys() - cls.model_fields.keys())
        return {name: value for name, value in data.items() if value is not None or name in stay}

    @property
    def said(self) -> dict[str, Any]:
        """The keys that were given, with their values: what the file says, and no default."""
        return {name: getattr(self, name) for name in type(self).model_fields if self.says(name)}

    def says(self, name: str) -> bool:
        """Whether the key was given."""
        return name in self.model_fields_set


@dataclass(frozen=True)
class Short:
    """`section: VALUE` is short for `section: {key: VALUE}`, in a file and in its JSON schema."""

    key: str
    kind: type[str] | type[bool] = str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_before_validator_function(self._whole, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        found = handler(schema)
        sections = [each for each in found.get("anyOf", [found]) if "$ref" in each]
        inside = handler.resolve_ref_schema(sections[0])["properties"][self.key]
        return {"anyOf": [found, {**inside, "title": f"short for {self.key}"}]}

    def _whole(self, value: Any) -> Any:
        return {self.key: value} if isinstance(value, self.kind) else value


def key(default: Any, meaning: str, *rules: object) -> Any:
    """A field with its meaning. `rules`: of `toolkit.settings.rules`."""
    field = Field(default=default, description=meaning)
    field.metadata += rules
    return field
