"""`kmifqe report` of a damaged or foreign run: one sentence, or a page without the damaged part; never a hang."""

from __future__ import annotations

import io
import json
import os
import signal
import zipfile

import numpy as np
import pytest

from report.small import small_landscape, small_run

SECONDS = 60  # what hangs waits for ever; what works takes a second


@pytest.fixture
def report(kmifqe_command, tmp_path):
    """Return a function that reports on a run, within a time limit, and the outcome with the page it made."""

    def run(folder):
        def ended(*_):
            raise TimeoutError("the report did not end")

        before = signal.signal(signal.SIGALRM, ended)
        signal.alarm(SECONDS)
        try:
            outcome = kmifqe_command("report", folder, "--out", tmp_path / "page.html")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        page = tmp_path / "page.html"
        return outcome, page.read_text(encoding="utf-8") if page.exists() else None

    return run


# --- result.json


def field(*path, to):
    """Return a change of one field of the record, named by its path."""

    def change(text):
        record = inside = json.loads(text)
        for part in path[:-1]:
            inside = inside[part]
        inside[path[-1]] = to
        return json.dumps(record).encode()

    return change


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


def with_key(text):
    """Return the record with half a character as the name of a setting."""
    return text.replace(b'"hidden"', b'"hid\\udc80den"', 1)


RECORDS = {
    "empty": lambda text: b"",
    "cut in the middle": lambda text: text[: len(text) // 2],
    "cut at the end": lambda text: text[:-3],
    "no JSON": lambda text: b"\x89PNG\r\n" + text,
    "zeros": lambda text: b"\0" * len(text),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "trailing bytes": lambda text: text + b"}",
    "a list": lambda text: b"[" + text + b"]",
    "null": lambda text: b"null",
    "NaN": lambda text: text.replace(b"null", b"NaN", 1),
    "Infinity": lambda text: text.replace(b'"steps": 200', b'"steps": Infinity', 1),
    "out of range": lambda text: text.replace(b'"steps": 200', b'"steps": 1e999', 1),
    "half a character": lambda text: text.replace(b"actor.npz", b"actor\\ud800.npz"),
    "the other half": lambda text: text.replace(b"actor.npz", b"\\udc80actor.npz"),
    "half a character as a key": with_key,
    "raw half a character": lambda text: text.replace(b"actor.npz", b"actor\xed\xa0\x80.npz"),
    "Latin-1": lambda text: text.replace(b"actor.npz", "actér.npz".encode("latin-1")),
    "another schema": field("schema", to="kmifqe.result/99"),
    "no schema": field("schema", to=None),
    "another tool's": lambda text: b'{"schema": "other", "metrics": [1, 2]}',
    "no estimates": field("estimates", to=[]),
    "no seeds": field("estimates", 0, "seeds", to=[]),
    "seeds twice": field("estimates", 0, "seeds", to=[0, 0]),
    "an estimator twice": lambda text: text.replace(b'"fqe"', b'"kmifqe"'),
    "a strange name": lambda text: text.replace(b'"fqe"', b'"\\u0000<b>\\u001b[31m"'),
    "a name as large as a book": lambda text: text.replace(b'"fqe"', b'"' + b"x" * 10**6 + b'"'),
    "a huge number of steps": field("estimates", 0, "steps", to=10**30),
    "a negative number of steps": field("estimates", 0, "steps", to=-5),
    "no records": lambda text: _without_records(text),
    "values of null": field("estimates", 0, "values", to=[None, None]),
    "huge values": field("estimates", 0, "values", to=[1e308, -1e308]),
    "a nested config": field("estimates", 0, "config", to={"a": {"b": [{"c": [1, {"d": None}]}]}}),
    "a deeply nested config": field("estimates", 0, "config", to={"a": nested(400)}),
    **{
        f"a config nested {depth} times": field("estimates", 0, "config", to={"a": nested(depth)})
        for depth in range(700, 960, 20)
    },
    "numbers of 400 digits": field("estimates", 0, "values", to=[10**400, 1]),
    "a config of other kinds": field("estimates", 0, "config", to={"a": True, "b": None, "": 1e308, "d": []}),
    "a nested extra": field("extra", to={"a": nested(300)}),
    "an interval upside down": field(
        "intervals", "kmifqe", to={"low": 9, "high": 1, "level": 7, "freedom": 0}
    ),
    "an infinite interval": field(
        "intervals", "kmifqe", to={"low": -1e308, "high": 1e308, "level": 0.9, "freedom": 1}
    ),
    "references of null": field("references", to={"truth": None}),
    "odd references": field("references", to={"": 1e308, "<script>": -1e308, "truth": 0}),
    "rows of zero": lambda text: _with_rows(text, 0),
    "negative rows": lambda text: _with_rows(text, -1),
    "a command that is none": field("provenance", "command", to=["\n\t", "", "'; rm -rf ~", "\u2028"]),
    "odd versions": field("provenance", "versions", to={"": "", "kmifqe": "<b>"}),
    "odd digests": field("provenance", "digests", to={"log": 3}),
    "a check of null": field("checks", 0, "value", to=None),
    "histograms that do not fit": field(
        "estimates", 0, "measurements", "weights", "weight_histogram", to=[1.0, 2.0]
    ),
    "no measurements": field("estimates", 0, "measurements", to=None),
}


def _without_records(text):
    record = json.loads(text)
    for estimate in record["estimates"]:
        estimate |= {"recorded_steps": [], "trajectory": [], "infos": {}}
    return json.dumps(record).encode()


def _with_rows(text, count):
    record = json.loads(text)
    record["question"]["rows"] = dict.fromkeys(record["question"]["rows"], count)
    return json.dumps(record).encode()


@pytest.mark.parametrize("damage", RECORDS)
def test_a_damaged_record_costs_a_sentence_or_a_part(report, tmp_path, damage):
    run = small_run(tmp_path / "run")
    path = run / "result.json"
    path.write_bytes(RECORDS[damage](path.read_bytes()))
    outcome, page = report(run)
    assert "Traceback" not in outcome.err
    if page is None:
        assert outcome.code == 2
        assert str(run) in outcome.err
    else:
        assert outcome.code == 0
        assert "<article" in page


# --- What is no file


def pipe(path):
    os.mkfifo(path)


def folder(path):
    path.mkdir()


def endless(path):
    path.symlink_to("/dev/zero")


def loop(path):
    path.symlink_to(path.name)


def dangling(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize("kind", [pipe, folder, endless, loop, dangling])
@pytest.mark.parametrize("name", ["result.json", "landscape.npz", "run.json", "."])
def test_what_is_no_file_is_named_and_not_waited_for(report, tmp_path, kind, name):
    run = small_run(tmp_path / "run", small_landscape())
    if name == ".":
        kind(tmp_path / "other")
        run = tmp_path / "other"
    else:
        (run / name).unlink(missing_ok=True)
        kind(run / name)
    outcome, page = report(run)
    assert "Traceback" not in outcome.err
    if name in ("landscape.npz", "run.json"):
        assert outcome.code == 0, outcome.err
        assert "<article" in page
        assert (name == "landscape.npz") == ("landscape.npz: is no file" in page)
    else:
        assert outcome.code == 2
        assert str(run) in outcome.err


# --- landscape.npz


def arrays(**changes):
    """Return a change of some arrays of the landscape; None removes one."""

    def change(content):
        with np.load(io.BytesIO(content)) as found:
            held = dict(found)
        for name, array in changes.items():
            name = name.replace("__", ".")
            if array is None:
                del held[name]
            else:
                held[name] = array(held[name]) if callable(array) else array
        buffer = io.BytesIO()
        np.savez(buffer, **held)
        return buffer.getvalue()

    return change


def surface(**changes):
    return arrays(**{f"0__{name}": array for name, array in changes.items()})


def with_member(name, data):
    def change(content):
        buffer = io.BytesIO(content)
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(name, data)
        return buffer.getvalue()

    return change


LANDSCAPES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "no zip": lambda content: b"landscape" * 99,
    "a flipped bit": lambda content: (
        content[: len(content) // 3] + b"\xff\xff\xff" + content[len(content) // 3 + 3 :]
    ),
    "another schema": arrays(schema=np.array("kmifqe.landscape/9")),
    "no schema": arrays(schema=None),
    "pickled members": with_member("low.npy", b"\x93NUMPY\x01\x00garbage"),
    "no points": arrays(points__states=None),
    "flat points": arrays(points__states=np.zeros(3, np.float32)),
    "a number for points": arrays(points__states=np.float32(3)),
    "text for points": arrays(points__states=np.full((3, 3), "a")),
    "complex points": arrays(points__targets=lambda x: x.astype(complex)),
    "infinite points": arrays(points__states=lambda x: x * np.inf),
    "a number for the box": arrays(low=np.float32(1)),
    "an infinite box": arrays(low=lambda x: x - np.inf, high=lambda x: x + np.inf),
    "a box of NaN": arrays(low=lambda x: x * np.nan),
    "a box upside down": arrays(low=lambda x: x + 5, high=lambda x: x - 5),
    "a number for the surfaces": arrays(surfaces=np.float32(2)),
    "more surfaces than there are": arrays(surfaces=np.array(["a"] * 5)),
    "no surfaces": arrays(surfaces=np.array([], str)),
    "no layers": surface(
        weights0=None, weights1=None, weights2=None, biases0=None, biases1=None, biases2=None
    ),
    "a missing layer": surface(weights1=None),
    "flat weights": surface(weights1=np.zeros(5, np.float32)),
    "a number for weights": surface(weights1=np.float32(5)),
    "weights of NaN": surface(weights0=lambda x: x * np.nan),
    "seeds of text": surface(seeds=np.array(["a", "b"])),
    "seeds of NaN": surface(seeds=np.array([np.nan, np.inf])),
    "seeds of huge size": surface(seeds=np.array([1e300, -1e300])),
    "a number for seeds": surface(seeds=np.float32(1)),
    "a scale of zero": surface(scale=lambda x: 0 * x),
    "h alone": surface(metrics=None),
    "h alone, a number": surface(metrics=None, h=np.float32(1)),
    "h alone, of text": surface(metrics=None, h=np.array(["a", "b"])),
    "metrics alone": surface(h=None),
    "metrics alone, flat": surface(h=None, metrics=np.zeros(3)),
    "an activation of its own": surface(hidden=np.array("eval")),
    "a name of half a character": surface(estimator=np.array("km\ud800")),
    "a name of markup": surface(estimator=np.array("<script>")),
    "no name": surface(estimator=np.zeros(0)),
    "two answers to cut_actions": surface(cut_actions=np.array([True, False])),
}


@pytest.mark.parametrize("damage", LANDSCAPES)
def test_a_damaged_landscape_is_left_out_and_named(report, tmp_path, damage):
    run = small_run(tmp_path / "run", small_landscape())
    path = run / "landscape.npz"
    path.write_bytes(LANDSCAPES[damage](path.read_bytes()))
    outcome, page = report(run)
    assert outcome.code == 0, outcome.err
    assert "The policy is worth" in page
    assert "data-explorer>" not in page
    assert "landscape.npz: " in page
