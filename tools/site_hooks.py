"""What MkDocs does beyond its settings: commands from the program, schemas, notebooks, files of the repository."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages link to these files of the repository; in the site they lie beside the pages.
LINKED = re.compile(r"\]\((?:\.\./)+(experiments/results/[^)#]+)\)")
NOTEBOOK = re.compile(r"\]\(([^):]+)\.ipynb\)")  # pages link to notebooks; in the site a page shows each
SCHEMAS = {
    "result.json": "src/kmifqe/report/result.schema.json",
    "ranking.json": "src/kmifqe/report/ranking.schema.json",
}
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
COMMANDS, FIELDS = "<!-- every command -->", "<!-- every schema -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, and the JSON schemas that the package ships."""
    pages = [file for file in files.documentation_pages() if file.abs_src_path is not None]
    linked = {found for page in pages for found in LINKED.findall(page.content_string)}
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for schema in SCHEMAS.values():
        name = f"reference/{Path(schema).name}"
        files.append(File.generated(config, name, abs_src_path=str(ROOT / schema)))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        for name, content in notebook_page(Path(notebook.src_uri), notebook.content_string).items():
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with its links into the repository mended, and with what the program says of itself."""
    depth = page.file.src_uri.count("/")
    markdown = LINKED.sub(lambda found: f"]({'../' * depth}{found[1]})", markdown)
    if page.file.abs_src_path is not None:  # a page made of a notebook links to the notebook itself
        markdown = NOTEBOOK.sub(r"](\1.md)", markdown)
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_reference())
    if FIELDS in markdown:
        markdown = markdown.replace(FIELDS, schema_reference())
    return markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with its equations in MathML, which browsers typeset without any script."""
    from latex2mathml.converter import convert

    def typeset(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()
        return convert(latex, display="block" if found[1] == "div" else "inline")

    return EQUATION.sub(typeset, content)


def notebook_page(path: Path, text: str) -> dict[str, str | bytes]:
    """Return the page that shows a notebook, and its pictures, by their names in the site."""
    made: dict[str, str | bytes] = {}
    parts: list[str] = []
    for i, cell in enumerate(json.loads(text)["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for j, output in enumerate(cell["outputs"]):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = path.with_name(f"{path.stem}-{i}-{j}.png")
                made[picture.as_posix()] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the cell above draws]({picture.name})")
            elif "text/html" in data:
                parts.append(f'<div class="output">{_plain_table("".join(data["text/html"]))}</div>')
            else:
                parts.append(f"``` {{ .text .output }}\n{''.join(data['text/plain']).rstrip()}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    link = f"This page is a notebook: [{path.name}]({path.name})."
    return made | {path.with_suffix(".md").as_posix(): f"{title}\n\n{link}\n{rest}\n"}


def _plain_table(table: str) -> str:
    """Return a table as pandas writes it without its own looks, so that it gets the site's."""
    table = re.sub(r"<style.*?</style>", "", table, flags=re.DOTALL)
    table = re.sub(r' (?:border|class|style)="[^"]*"', "", table)
    return re.sub(r"\s*\n\s*", "", table)


def command_reference() -> str:
    """Return every command of `kmifqe` with its arguments and options, as Markdown."""
    import typer.main

    from kmifqe.cli.app import app

    return "\n".join(_command(typer.main.get_command(app), "kmifqe"))


def _command(command: Any, path: str) -> list[str]:
    """Return the lines about one command and, where it is a group, about those in it."""
    context = command.make_context(path, [], resilient_parsing=True)
    lines = [f"## {path}", "", *_paragraphs(command.help or ""), ""]
    parameters = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    if not getattr(command, "commands", None):
        lines += ["```", " ".join([path, *command.collect_usage_pieces(context)]), "```", ""]
    rows = [_row(each, context) for each in parameters if each.name != "help"]
    if rows:
        lines += ["| argument or option | meaning | default |", "| --- | --- | --- |", *rows, ""]
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            lines += _command(child, f"{path} {name}")
    return lines


def _paragraphs(text: str) -> list[str]:
    """Return a command's help; an example becomes a block of code."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", text.replace("\b", "").strip()):
        sentence = " ".join(paragraph.split())
        if sentence.startswith("Example: "):
            lines += ["```", sentence.removeprefix("Example: "), "```", ""]
        else:
            lines += [_plain(sentence), ""]
    return lines


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return f"{name}..." if parameter.nargs == -1 and not name.endswith("...") else name


def _row(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{_argument(parameter)}`"
    else:
        flags = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        taken = " or ".join(f"`{each}`" for each in parameter.metavar.split("|"))
        names = flags if parameter.is_flag else f"{flags} {taken}"
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if parameter.required:
        default = "required"
    elif default in (None, False, "", (), []) or callable(default):
        default = ""
    elif default is True:
        default = "on"
    cells = (names, _plain(" ".join((parameter.help or "").split())), _plain(str(default)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _plain(text: str) -> str:
    """Return a sentence of help without rich's markup, with nothing that Markdown would take for its own."""
    text = re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)\]", "", text)
    return re.sub(r"([*_<>])", r"\\\1", text)


def schema_reference() -> str:
    """Return the fields of every JSON schema that the package ships, as Markdown."""
    lines: list[str] = []
    for name, path in SCHEMAS.items():
        schema = json.loads((ROOT / path).read_text(encoding="utf-8"))
        lines += [f"## {name}", "", f"The whole schema: [{Path(path).name}]({Path(path).name}).", ""]
        records = {"": schema, **schema.get("$defs", {})}
        for record, definition in records.items():
            if "properties" not in definition and "$ref" in definition:
                continue
            if "properties" in definition:
                lines += _record(name, record or name, definition)
    return "\n".join(lines)


def _record(file: str, name: str, definition: dict[str, Any]) -> list[str]:
    lines = [f"### {name} in {file}" if name != file else f"### The whole of {file}", ""]
    said = " ".join(definition.get("description", "").split("\n\n")[0].split())
    lines += [_plain(said), ""] * bool(said)
    needed = definition.get("required", [])
    lines += ["| field | type | always there |", "| --- | --- | --- |"]
    for field, of in definition["properties"].items():
        lines.append(f"| `{field}` | {_shown_type(of)} | {'yes' if field in needed else ''} |")
    return [*lines, ""]


def _shown_type(of: dict[str, Any]) -> str:
    """Return a JSON schema's type in words."""
    if "$ref" in of:
        return of["$ref"].rsplit("/", 1)[1]
    if "enum" in of:
        return " or ".join(f"`{each}`" for each in of["enum"])
    if "anyOf" in of:
        return " or ".join(dict.fromkeys(_shown_type(each) for each in of["anyOf"]))
    kind = of.get("type", "anything")
    if kind == "array" and isinstance(of.get("items"), dict):
        return f"list of {_shown_type(of['items'])}"
    if kind == "object" and isinstance(of.get("additionalProperties"), dict):
        return f"object of {_shown_type(of['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
