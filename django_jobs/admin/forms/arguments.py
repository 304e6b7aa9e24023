"""Form fields for the arguments of a handler, made from its signature."""

from __future__ import annotations

import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...api.job_type import JobType
from ...domain.payload import Coding
from ..base.json_display import coding_of, masked
from .coded import CODED, MOMENTS, NOTHING, Built, coded, coded_kind, encoded, plain_kind
from .fields import JsonObjectText, JsonText

PREFIX = "argument_"
MORE = "more_arguments"
"""The field for the ``**keywords`` of a handler."""
BLANK = ("", None)
HIDDEN = _("Hidden. Leave empty to keep the current value.")


class Argument(NamedTuple):
    """One parameter: its form field, and the conversion between typed text and payload."""

    name: str
    field: forms.Field
    read: Callable[[Any], Any]
    show: Callable[[Any], Any]
    has_default: bool = False

    @property
    def key(self) -> str:
        return f"{PREFIX}{self.name}"


def arguments_of(
    job_type: JobType[..., Any], stored: Mapping[str, Any] | None = None
) -> list[Argument]:
    """A field for each parameter that has a name. One whose ``stored`` value is encoded, or a list
    or an object, has a field for what it is, also if its annotation says another type."""
    hints, stored = _hints(job_type), stored or {}
    coding = coding_of(job_type.name)
    found = []
    for parameter in job_type.signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            annotation = hints.get(parameter.name, parameter.annotation)
            value = stored.get(parameter.name, NOTHING)
            found.append(_argument(parameter, annotation, coding, value))
    return found


def add_arguments(
    fields: dict[str, forms.Field], job_type: JobType[..., Any], arguments: list[Argument]
) -> None:
    fields.update({argument.key: argument.field for argument in arguments})
    if takes_more(job_type):
        fields[MORE] = JsonObjectText(
            label=_("Other arguments"),
            required=False,
            help_text=_("A JSON object: values by name."),
        )


def show_arguments(
    form: forms.BaseForm,
    job_type: JobType[..., Any],
    arguments: list[Argument],
    values: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> None:
    """Fill in the values. A secret is shown empty, and stays as it is ``stored``."""
    rest = dict(values)
    for argument in arguments:
        if argument.name not in rest:
            continue
        field, value = form.fields[argument.key], rest.pop(argument.name)
        if is_hidden(argument.name, value):
            if argument.name in stored:
                field.required, field.help_text = False, HIDDEN
            continue
        initial = form.initial[argument.key] = argument.show(value)
        if isinstance(field.widget, forms.TextInput) and "\n" in str(initial):
            field.widget = forms.Textarea(attrs={"rows": 4, "class": "vLargeTextField"})
    others = {name: value for name, value in rest.items() if not is_hidden(name, value)}
    if MORE in form.fields and others:
        coding = coding_of(job_type.name)
        form.initial[MORE] = written(others if coding is None else coding.as_text(others))


def typed_payload(
    form: forms.BaseForm,
    job_type: JobType[..., Any],
    arguments: list[Argument],
    stored: Mapping[str, Any],
) -> dict[str, Any]:
    """The payload of a form without errors. Adds the error of other arguments to it."""
    payload = payload_of(arguments, form, stored)
    if MORE in form.fields:
        try:
            payload |= _more_payload(job_type, form.cleaned_data[MORE], arguments, stored)
        except ValidationError as error:
            form.add_error(MORE, error)
    return payload


def takes_more(job_type: JobType[..., Any]) -> bool:
    parameters = job_type.signature.parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def payload_of(
    arguments: list[Argument], form: forms.BaseForm, stored: Mapping[str, Any]
) -> dict[str, Any]:
    """The payload of a valid form. What the user left alone stays as it is in ``stored``, also
    where the form would have another type for it; a hidden value was shown empty. A field that was
    emptied means the handler's default."""
    payload: dict[str, Any] = {}
    for argument in arguments:
        typed = form.cleaned_data.get(argument.key)
        if argument.name in stored and argument.key not in form.changed_data:
            payload[argument.name] = stored[argument.name]
        elif typed not in BLANK:
            payload[argument.name] = argument.read(typed)
        elif not argument.has_default:
            payload[argument.name] = None
    return payload


def _more_payload(
    job_type: JobType[..., Any], text: str, arguments: list[Argument], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """The additional arguments of a valid form, by name. Raises ``ValidationError`` for one that
    has a field in the form, and as :func:`encoded` does."""
    named = {argument.name for argument in arguments}
    hidden = {
        name: value
        for name, value in stored.items()
        if name not in named and is_hidden(name, value)
    }
    others: dict[str, Any] = json.loads(text) if text else {}
    if twice := sorted(named & others.keys()):
        raise ValidationError(_("%(name)s has a field in this form.") % {"name": twice[0]})
    if coding := coding_of(job_type.name):
        before = {name: value for name, value in stored.items() if name not in named}
        others = encoded(others, before, _annotation_of_more(job_type), coding)
    return hidden | others


def is_hidden(name: str, value: Any) -> bool:
    return bool(masked({name: value}) != {name: value})


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hints(job_type: JobType[..., Any]) -> dict[str, Any]:
    """The annotations by name; of a job type that starts a workflow, those of its steps."""
    workflow = registry.workflow(getattr(job_type.handler, "starts_workflow", ""))
    if workflow is not None:
        hints: dict[str, Any] = {}
        for step in reversed(workflow.steps):
            for one in filter(None, (step.compensate, step.job_type)):
                hints |= _hints(one)
        return hints
    try:
        return typing.get_type_hints(getattr(job_type.handler, "annotated", job_type.handler))
    except Exception:  # an annotation may be any expression, of names only checkers know
        return {}


def _annotation_of_more(job_type: JobType[..., Any]) -> Any:
    """Of the ``**keywords`` of a handler, as that of a dict."""
    for parameter in job_type.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            annotation = _hints(job_type).get(parameter.name, parameter.annotation)
            return types.GenericAlias(dict, (str, annotation))
    return Any


def _argument(
    parameter: inspect.Parameter, annotation: Any, coding: Coding | None, stored: Any
) -> Argument:
    has_default = parameter.default is not parameter.empty
    kind, optional = plain_kind(annotation)
    stored_kind = None if coding is None else coded_kind(stored, coding)
    if stored_kind is None and isinstance(stored, dict | list):
        field, read, show = _json(kind)
    else:
        kind = stored_kind or kind
        field, read, show = _built(kind)
        if coding is not None and isinstance(kind, type) and kind in CODED:
            field, read, show = coded(kind, field, coding)
    if coding is not None and isinstance(field, JsonText):
        read, show = _coded_json(field, stored, annotation, coding)
    if is_hidden(parameter.name, "secret") and not isinstance(field, forms.ChoiceField):
        # Is never sent back, also not with the errors of a form.
        attrs = {"class": "vTextField", "autocomplete": "off"}
        field.widget = forms.PasswordInput(attrs=attrs)
    field.required = not (has_default or optional)
    field.label = parameter.name
    notes = [field.help_text]
    if has_default:
        default = parameter.default
        default = default.value if isinstance(default, enum.Enum) else default
        note = _("Empty: %(default)s.") % {"default": _default_text(default)}
        if isinstance(field, forms.ChoiceField):
            choices: Any = field.choices
            field.choices = [("", note), *list(choices)[1:]]
        else:
            notes.append(note)
    elif optional:
        notes.append(_("Empty: none."))
    field.help_text = " ".join(str(note) for note in notes if note)
    return Argument(name=parameter.name, field=field, has_default=has_default, read=read, show=show)


def _built(kind: Any) -> Built:
    build = _BUILDERS.get(kind, _json) if isinstance(kind, type) else _json
    return _chosen(kind) if _choices(kind) else build(kind)


def _choices(kind: Any) -> list[Any]:
    """The values of a ``Literal`` or an ``Enum``; empty for any other type."""
    members: list[Any] = []
    if kind is bool:
        members = [True, False]
    elif typing.get_origin(kind) is typing.Literal:
        members = list(typing.get_args(kind))
    elif isinstance(kind, type) and issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag):
        members = list(kind)
    values = [member.value if isinstance(member, enum.Enum) else member for member in members]
    return values if all(isinstance(value, str | int | float) for value in values) else []


def _chosen(kind: Any) -> Built:
    values = _choices(kind)
    labels = [_("yes"), _("no")] if kind is bool else [str(value) for value in values]
    numbered = [(str(number), label) for number, label in enumerate(labels)]

    def show(value: Any) -> str:
        for number, choice in enumerate(values):
            if type(choice) is type(value) and choice == value:
                return str(number)
        return ""

    field = forms.ChoiceField(choices=[("", "---------"), *numbered])
    return field, lambda number: values[int(number)], show


def _text(kind: Any) -> Built:
    field = forms.CharField(strip=False, widget=forms.TextInput(attrs={"class": "vTextField"}))
    # Browsers send the line breaks of a longer text with carriage returns.
    return field, lambda text: text.replace("\r\n", "\n"), _as_text


def _whole(kind: Any) -> Built:
    return forms.IntegerField(help_text=_("A whole number.")), _same, _same


def _number(kind: Any) -> Built:
    return forms.FloatField(help_text=_("A number.")), _same, _same


def _moment(kind: Any) -> Built:
    parsed, example = MOMENTS[kind]

    def check(text: str) -> None:
        try:
            parsed.fromisoformat(text)
        except ValueError:
            raise ValidationError(example) from None

    return forms.CharField(validators=[check], help_text=example), _same, _same


def _json(kind: Any) -> Built:
    return JsonText(help_text=_("JSON.")), json.loads, written


def _coded_json(
    field: JsonText, stored: Any, annotation: Any, coding: Coding
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What reads the text of the field, and what shows it: dates and the like as texts."""
    field.encoded = lambda typed: encoded(typed, stored, annotation, coding)
    return (
        lambda text: encoded(json.loads(text), stored, annotation, coding),
        lambda value: written(coding.as_text(value)),
    )


_BUILDERS: dict[Any, Callable[[Any], Built]] = {
    str: _text,
    int: _whole,
    float: _number,
    **dict.fromkeys(MOMENTS, _moment),
}


def _as_text(value: Any) -> Any:
    return value if value is None else str(value)


def _same(value: Any) -> Any:
    return value


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return str(_("yes") if default else _("no"))
    if default is None:
        return str(_("none"))
    if type(default) in CODED:
        return str(default)
    return default if isinstance(default, str) and default else repr(default)
