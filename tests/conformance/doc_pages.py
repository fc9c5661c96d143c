# SPDX-License-Identifier: Apache-2.0
"""What a page of the documentation holds: fenced blocks with what is said of them, tables, quotes, links and headings."""
import dataclasses
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md"] + sorted((ROOT / "docs").glob("*.md"))
LANGUAGES = {"sh", "python", "json", "yaml", "toml", "jinja", ""}  # "" is the output of the block before it


@dataclasses.dataclass
class Block:
    page: pathlib.Path
    line: int
    language: str
    text: str
    not_run: str = ""  # why; empty: it is run
    status: int = 200  # what its last request answers: 2xx, or the one that is said
    file: str = ""  # it is the content of this file

    @property
    def where(self):
        return f"{self.page.name}:{self.line}"


def blocks_of(page):
    """Comments right before a fence: <!-- not run: reason -->, <!-- status: 404 -->, <!-- file: NAME -->."""
    found, said, opened = [], {}, None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if opened is not None:
            if fence:
                opened.text = "\n".join(opened.text)
                found.append(opened)
                opened, said = None, {}
            else:
                opened.text.append(line)
            continue
        if fence:
            language = fence.group(1).strip()
            if language not in LANGUAGES:
                raise AssertionError(f"{page}:{number}: a block of the language '{language}', which no test runs")
            if language == "yaml" and not said.get("not run"):
                raise AssertionError(f"{page}:{number}: yaml is for other programs; say why it is not run")
            opened = Block(page, number, language, [], said.get("not run", ""), int(said.get("status", 200)),
                           said.get("file", ""))
            continue
        comment = re.fullmatch(r"\s*<!-- (not run|status|file): (.+) -->", line)
        if comment:
            said[comment.group(1)] = comment.group(2)
        elif line.strip():
            if said:
                raise AssertionError(f"{page}:{number}: a comment about a block stands before something else")
    if opened is not None:
        raise AssertionError(f"{page}:{opened.line}: the block does not end")
    return found


def outside_blocks(page):
    """(number, line) of what is neither in a fenced block nor a comment."""
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if re.match(r"\s*```", line):
            inside = not inside
        elif not inside and not line.lstrip().startswith("<!--"):
            yield number, line


def commands(block):
    """The words of each command line of a block of sh; a line ends where no backslash or open quote goes on."""
    found, pending = [], ""
    for line in block.text.splitlines():
        pending += line + "\n"
        if line.endswith("\\"):
            pending = pending[:-2] + " "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue  # a quote is open
        if words:
            found.append(words)
        pending = ""
    if pending.strip():
        raise AssertionError(f"{block.where}: a quote is open at the end")
    return found


def table_rows(page, heads):
    """Cells of all rows of those tables whose header cells begin with `heads`."""
    rows, state = [], None
    for number, line in outside_blocks(page):
        if not line.lstrip().startswith("|"):
            state = None
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if state is None:
            state = cells[: len(heads)] == list(heads)
        elif state and not re.fullmatch(r"[-| :]+", line.strip()):
            rows.append((number, cells))
    return rows


def spans(text):
    """Inline code."""
    return [span for _, span in re.findall(r"(?<!`)(`+)(?!`) ?(.+?) ?\1(?!`)", text)]


def slug(heading):
    """As GitHub makes anchors of headings."""
    text = re.sub(r"[`*]|\[(.*?)\]\(.*?\)", lambda m: m.group(1) or "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page):
    seen, found = {}, set()
    for _, line in outside_blocks(page):
        heading = re.match(r"#+ (.*)", line)
        if heading:
            name = slug(heading.group(1))
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(name if count == 0 else f"{name}-{count}")
    return found


def links(page):
    for number, line in outside_blocks(page):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if not re.match(r"[a-z]+:", target):
                yield number, target


LITERAL = r'"((?:[^"\\\n]|\\.)*)"'


def sentences_of(path):
    """String literals of a C++ source, those that stand side by side (or with a plus between them) as one."""
    text = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.M)
    text = re.sub(r'R"\((.*?)\)"', lambda m: '"' + m.group(1).replace("\\", "\\\\").replace('"', '\\"') + '"', text)
    for group in re.finditer(LITERAL + r"(?:\s*\+?\s*" + LITERAL + r")*", text):
        joined = "".join(re.findall(LITERAL, group.group(0)))
        yield re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), joined)
