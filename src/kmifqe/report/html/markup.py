"""HTML that cannot be forgotten to be escaped: text is text until a function here makes it markup."""

from __future__ import annotations

import html
import json
from typing import Any

_VOID = {"br", "meta", "input", "hr"}


class Html(str):
    """Text that is markup already; everything else is escaped where it is put."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Return an element. `class_` and `aria_label` stand for class and aria-label; None is left out, True is bare."""
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{words}>")
    return Html(f"<{name}{words}>{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Return the children one after the other: markup as it is, None left out, anything else escaped."""
    return Html("".join(_inside(child) for child in children))


def json_script(identity: str, value: Any) -> Html:
    """Return a data block that a script reads; nothing in it can end the block or be taken for markup."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Html(f'<script type="application/json" id="{html.escape(identity)}">{text}</script>')


def _inside(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, (list, tuple)):
        return "".join(_inside(each) for each in child)
    return html.escape(str(child))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
