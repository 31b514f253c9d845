"""An experiment that only notes who did what, to see how rows are driven."""

from __future__ import annotations

import os


def rows(preset):
    return ("a", "b", "c")


def prepare(row, context):
    context.work.mkdir(parents=True, exist_ok=True)
    (context.work / f"{row}.prepared").write_text(str(os.getpid()))


def run(row, context):
    prepared = context.work / f"{row}.prepared"
    context.say(f"{row} {prepared.read_text() if prepared.exists() else 'nobody'}")
