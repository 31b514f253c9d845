"""Run the site's notebooks and keep what they show: `python tools/run_notebooks.py [NAME ...]`.

A notebook is committed as it came out of here, so that its page has figures and tables. What a run says while it
goes on is left out. A digest of the code is kept with them: tests/test_notebooks.py sees code that was changed since.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
KEPT = ("text/plain", "text/html", "image/png")


def execute(notebook: nbformat.NotebookNode, folder: str | Path) -> None:
    """Run all cells of a notebook in `folder`, in this Python; raises `CellExecutionError` where one fails."""
    with tempfile.TemporaryDirectory() as sockets:  # files in place of ports that others can see
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, manager, timeout=600, resources=resources, coalesce_streams=True).execute()


def code_digest(notebook: nbformat.NotebookNode) -> str:
    """Return a digest of the code of all cells."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leave out of the outputs what was said on the way, and everything that differs from run to run."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _is_kept(output)]
            for output in cell.outputs:
                if "data" in output:
                    output.data = {kind: output.data[kind] for kind in KEPT if kind in output.data}
                    output.metadata = {}
                    if "image/png" in output.data:  # in one line: the spell checker knows it by its length
                        output.data["image/png"] = "".join(output.data["image/png"].split())
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "code_sha256": code_digest(notebook),
    }


def _is_kept(output: nbformat.NotebookNode) -> bool:
    if output.output_type == "stream":
        return bool(output.name == "stdout" and output.text.strip())
    return bool(output.output_type == "execute_result" or "image/png" in output.data)


def main(names: list[str]) -> None:
    """Run the notebooks that are named, by default all of them, and write them back."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, folder)
        tidy(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
