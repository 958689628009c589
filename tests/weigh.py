"""Print the weight of the project: code lines and files of each room, and of the tests.

Code lines are those that are no docstring, no comment and not blank.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines(source: str) -> int:
    """Return the number of code lines of a file."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def main() -> None:
    """Print the lines and files of each room."""
    names = subprocess.check_output(["git", "ls-files", "*.py"], text=True).split()
    lines, files = Counter[str](), Counter[str]()
    for path in map(Path, names):
        part, *below = path.parent.parts
        rooms = {part, f"{part}/{below[0]}"} if below and part != "tests" else {part}
        for room in rooms if part in ("tests", "benchmarks") else rooms | {"product"}:
            lines[room] += code_lines(path.read_text(encoding="utf-8"))
            files[room] += 1
    for room in sorted(lines):
        sys.stdout.write(f"{lines[room]:7,} lines {files[room]:4} files  {room}\n")


if __name__ == "__main__":
    main()
