"""What a run did not write itself it neither replaces nor removes, whatever it is called and is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kmifqe.errors import InputError
from kmifqe.store.checkpoints import CheckpointFolder
from kmifqe.store.directory import LOCK, open_run
from kmifqe.store.manifest import MANIFEST, RANK, RANKING
from store.conftest import assert_same_bits, run_toy
from store.test_checkpoints import PowerCutError, cut_at, go_on
from store.toy import toy

MODES = [{}, {"resume": True}, {"force": True}]


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return everything below a folder: kind, content, mode and time of every entry."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content: object = os.readlink(path)
        else:
            content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def written(text: str):
    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def linked_to(target: str):
    return lambda path: path.symlink_to(target)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def ours(**changes: object) -> str:
    record = {"schema": "kmifqe.run/2", "kmifqe": "0.1.0", "created": "", "directory": "/", "options": {}}
    return json.dumps(record | changes)


STRANGERS = {
    "another tool's run.json": ("run.json", written('{"name": "sweep-7", "config": {}}')),
    "a newer schema": ("run.json", written(ours(schema="kmifqe.run/9"))),
    "an older schema": ("run.json", written(ours(schema="kmifqe.run/1"))),
    "no schema at all": ("run.json", written("{}")),
    "a cut run.json": ("run.json", written('{"schema": "kmifqe.run/2", "opt')),
    "an empty run.json": ("run.json", written("")),
    "a list as run.json": ("run.json", written("[1, 2]")),
    "a binary run.json": ("run.json", lambda path: path.write_bytes(b"\xff\xfe\0\1" * 9)),
    "a linked run.json": ("run.json", linked_to("/etc/hostname")),
    "a dangling run.json": ("run.json", linked_to("nowhere")),
    "a folder run.json": ("run.json", as_folder),
    "a pipe run.json": ("run.json", as_pipe),
    "names outside": ("run.json", written(ours(files=["../victim.txt"]))),
    "names far outside": ("run.json", written(ours(files=["checkpoints/../step-000000000010.safetensors"]))),
    "an absolute name": ("run.json", written(ours(files=["/etc/hostname"]))),
    "somebody's checkpoints": ("checkpoints/ppo/step-1000.pt", written("weights")),
    "somebody's snapshots": ("checkpoints/toy/step-000000000100.safetensors", written("weights")),
    "somebody's finished": ("finished/toy.safetensors", written("weights")),
    "a report": ("report.html", written("<p>mine")),
    "a figure": ("trajectories.png", written("png")),
    "another figure": ("bandwidth.png", written("png")),
    "a landscape": ("landscape.npz", written("npz")),
    "a density": ("behavior.safetensors", written("mine")),
    "a result": ("result.json", written("{}")),
    "a lock": (".lock", written("")),
    "a link as our lock": (LOCK, linked_to("/etc/hostname")),
    "a folder as our lock": (LOCK, as_folder),
    "notes": ("notes.txt", written("mine")),
    "a dangling link": ("link", linked_to("nowhere")),
    "an empty folder": ("empty", as_folder),
}


@pytest.mark.parametrize("mode", MODES, ids=["plain", "resume", "force"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_directory_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path, stranger, mode):
    name, make = STRANGERS[stranger]
    (tmp_path / "victim.txt").write_text("keep")
    out = tmp_path / "run"
    out.mkdir()
    make(out / name)
    before = tree(tmp_path)
    with pytest.raises(InputError, match=str(out)):
        run_toy(out, **mode)
    assert tree(tmp_path) == before


def test_a_file_in_place_of_the_directory_is_refused_and_left(tmp_path):
    for name, make in {"file": written("mine"), "dangling": linked_to("nowhere"), "pipe": as_pipe}.items():
        make(tmp_path / name)
        before = tree(tmp_path)
        for mode in MODES:
            with pytest.raises(InputError, match=name):
                run_toy(tmp_path / name, **mode)
        assert tree(tmp_path) == before


OWN_ADDITIONS = {
    "notes.txt": written("mine"),
    "checkpoints/ppo/step-1000.pt": written("weights"),
    "checkpoints/toy/step-best.safetensors": written("weights"),
    "checkpoints/toy/step-000000000007.safetensors": written("weights"),
    "finished/mine.safetensors": written("weights"),
    ".lock": written(""),
    "link": linked_to("nowhere"),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("mode", [{"resume": True}, {"force": True}], ids=["resume", "force"])
def test_what_a_user_adds_to_a_run_outlives_it(tmp_path, undisturbed, finished, mode):
    out = tmp_path / "run"
    if finished:
        run_toy(out)
    else:
        with pytest.raises(PowerCutError):
            run_toy(out, on_progress=cut_at(101))
    for name, make in OWN_ADDITIONS.items():
        make(out / name)
    before = {name: entry for name, entry in tree(out).items() if name in OWN_ADDITIONS}
    assert_same_bits(run_toy(out, **mode), undisturbed)
    after = tree(out)
    assert {name: after.get(name) for name in OWN_ADDITIONS} == before
    assert "checkpoints/toy/step-000000000100.safetensors" not in after


@pytest.mark.parametrize("mode", [{"resume": True}, {"force": True}], ids=["resume", "force"])
@pytest.mark.parametrize("name", ["report.html", "trajectories.png", "result.json", "behavior_fit.json"])
def test_a_file_of_the_user_with_a_name_of_ours_is_not_replaced(tmp_path, name, mode):
    out = tmp_path / "run"
    run_toy(out)
    (out / name).write_text("mine")
    before = tree(out)
    with pytest.raises(InputError, match=name):
        run_toy(out, **mode)
    assert tree(out) == before


@pytest.mark.parametrize("mode", [{"resume": True}, {"force": True}], ids=["resume", "force"])
@pytest.mark.parametrize("folder", ["finished", "checkpoints", "checkpoints/toy"])
def test_a_folder_of_a_run_that_leads_elsewhere_is_not_followed(tmp_path, folder, mode):
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with pytest.raises(PowerCutError):
        run_toy(out, on_progress=cut_at(101))
    (out / "finished").mkdir()
    (out / folder).rename(elsewhere)
    (out / folder).symlink_to(elsewhere)
    before = tree(elsewhere)
    with pytest.raises(InputError, match="is a link"):
        run_toy(out, **mode)
    assert tree(elsewhere) == before


def test_a_file_that_became_a_link_is_replaced_and_its_target_kept(tmp_path, undisturbed):
    out, victim = tmp_path / "run", tmp_path / "victim"
    run_toy(out)
    victim.write_bytes(b"keep")
    (out / "finished" / "toy.safetensors").unlink()
    (out / "finished" / "toy.safetensors").symlink_to(victim)
    assert_same_bits(run_toy(out, force=True), undisturbed)
    assert victim.read_bytes() == b"keep"


def removed(out: Path, other: Path) -> None:
    out.rename(out.with_name("aside"))


def swapped_for_a_link(out: Path, other: Path) -> None:
    removed(out, other)
    out.symlink_to(other)


def replaced(out: Path, other: Path) -> None:
    removed(out, other)
    out.mkdir()


@pytest.mark.parametrize("happens", [removed, swapped_for_a_link, replaced])
def test_a_directory_that_is_taken_away_in_mid_run_is_noticed(tmp_path, happens, undisturbed):
    out, other = tmp_path / "run", tmp_path / "other"
    run_toy(other)
    before = tree(other)

    def happen_at_step_50(progress):
        if progress.step == 50:
            happens(out, other)

    with pytest.raises(InputError, match="removed, moved or replaced"):
        run_toy(out, on_progress=happen_at_step_50)
    assert tree(other) == before
    if happens is replaced:
        assert list(out.iterdir()) == []
    if out.is_symlink():
        out.unlink()
    elif out.exists():
        out.rmdir()
    out.with_name("aside").rename(out)  # put back, it goes on
    assert_same_bits(run_toy(out, resume=True), undisturbed)


def test_a_folder_of_snapshots_alone_leaves_other_files_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("step-best.safetensors", "step-1000.pt", "notes.txt"):
        (folder / name).write_text("mine")
    before = tree(folder)
    go_on(folder)
    CheckpointFolder(folder).clear()
    assert tree(folder) == before


def test_an_estimator_cannot_be_named_as_a_path(tmp_path):
    with pytest.raises(InputError, match="slashes"):
        run_toy(tmp_path / "run", estimator=toy(name="../../elsewhere"))
    assert sorted(tmp_path.iterdir()) == []


def test_a_ranking_and_an_evaluation_do_not_go_on_as_each_other(tmp_path) -> None:
    run_toy(tmp_path / "run")
    before = tree(tmp_path / "run")
    with (
        pytest.raises(InputError, match="a run of `kmifqe evaluate`"),
        open_run(tmp_path / "run", {}, task=RANK, resume=True),
    ):
        pass
    assert tree(tmp_path / "run") == before
    with open_run(tmp_path / "run", {}, task=RANK, force=True) as run:
        run.begin_ranking({})
        run.file(RANKING).write_text("{}")
    with pytest.raises(InputError, match="a run of `kmifqe rank`"):
        run_toy(tmp_path / "run", resume=True)
    assert set(tree(tmp_path / "run")) == {MANIFEST, RANKING}


@pytest.mark.parametrize("mode", [{"resume": True}, {"force": True}], ids=["resume", "force"])
@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/toy", "finished"])
def test_what_lies_behind_a_link_in_a_listed_place_is_not_touched(tmp_path, name, mode):
    out, theirs = tmp_path / "run", tmp_path / "theirs"
    files = ["checkpoints/toy/step-000000000100.safetensors", "finished/toy.safetensors"]
    written(ours(files=[file for file in files if file.startswith(name)]))(out / MANIFEST)
    for kept in ("step-000000000100.safetensors", "toy/step-000000000100.safetensors", "toy.safetensors"):
        written("weights")(theirs / kept)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).symlink_to(theirs)
    before, listed = tree(theirs), (out / MANIFEST).read_bytes()
    with pytest.raises(InputError, match=name):
        run_toy(out, **mode)
    assert tree(theirs) == before
    assert (out / MANIFEST).read_bytes() == listed


def test_what_lies_behind_a_link_put_there_meanwhile_is_not_touched(tmp_path, undisturbed):
    out, theirs = tmp_path / "run", tmp_path / "theirs"

    def move_away(progress) -> None:
        if not theirs.exists() and any(out.glob("checkpoints/toy/*")):
            (out / "checkpoints").rename(theirs)
            (out / "checkpoints").symlink_to(theirs)

    with pytest.raises(InputError, match="checkpoints"):
        run_toy(out, on_progress=move_away)
    there = tree(theirs)
    assert there
    assert (out / "checkpoints").is_symlink()
    with pytest.raises(InputError, match="checkpoints"):
        run_toy(out, resume=True)
    assert tree(theirs) == there
    (out / "checkpoints").unlink()
    theirs.rename(out / "checkpoints")
    assert_same_bits(run_toy(out, resume=True), undisturbed)
