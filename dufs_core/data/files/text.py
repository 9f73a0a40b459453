"""Tables in text files: delimiter, decimal mark and header are found by looking, and said in what is returned.

A file is cut into cells by csv.reader (or at white space) and every row's cells go through float, so a bad
cell, a ragged row or a column of text is reported with its line.
"""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dufs_core.backend import Array
from dufs_core.errors import DufsWarning, FileFormatError, user_stacklevel

_DELIMITERS = ("\t", ";", ",", "|", " ")  # in order of preference; " " is any white space
_DELIMITER_NAMES = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "white space"}
_SAMPLE_ROWS = 12
_SURELY_COUNTED = 10  # a first row 0, 1, ..., 9 is no accident; a shorter one may be data
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-", "."})
_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_DIGITS_ONLY = re.compile(r"[-+\d.,' ]+")  # no name, whether or not it is a number as it stands
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_NOT_FEATURES = frozenset({"label", "labels", "class", "classes", "target", "y", "id", "index", "sample", "cluster"})


class Text(NamedTuple):
    """The fields of `dufs_core.data.files.arrays.Table`."""

    X: Array
    feature_names: tuple[str, ...] | None
    labels: Array | None
    read_as: dict[str, Any]
    notes: tuple[str, ...]


class _Row(NamedTuple):
    place: str  # "line 7", or, of a table that was turned, "column 7"
    cells: Sequence[str]


def read_text(
    path: Path, labels: str | None, transpose: bool, header: bool | None, index_columns: Sequence[str]
) -> Text:
    """Read a text table; the parameters are those of `dufs_core.data.files.arrays.read_table`."""
    lines, comment, line_number = _lines(path)
    delimiter = _find_delimiter(lines)
    rows = _cut(path, lines, delimiter, line_number)
    if transpose:
        rows = _turned(rows)
    sample = list(itertools.islice(rows, _SAMPLE_ROWS))
    width = len(sample[0].cells)
    body_cells = [cell.strip() for row in sample for cell in row.cells]
    decimal = _find_decimal(path, body_cells, lines, delimiter)
    notes = []

    if header is None:
        header = _looks_like_header([row.cells for row in sample], decimal)
        if not header and len(sample) > 1 and _counts_from_zero([cell.strip() for cell in sample[0].cells]):
            warnings.warn(
                f"{path.name}: the first row, {', '.join(sample[0].cells)}, is read as data; "
                f"if it only counts the columns, say --header",
                DufsWarning,
                stacklevel=user_stacklevel(),
            )
    names: list[str] | None = None
    if header:
        names = [cell.strip() for cell in sample.pop(0).cells]
    elif comment is not None and not transpose and len(cells := _split(comment, delimiter)) == width:
        names = [cell.strip() for cell in cells]  # as numpy.savetxt writes them
    if not sample:
        raise FileFormatError(f"{path} has a header and no rows of numbers")

    left_out = {_column(path, c, names, width): c for c in index_columns}
    label_column = None if labels is None else _column(path, labels, names, width)
    if label_column in left_out:
        raise FileFormatError(
            f"{path}: column {_called(label_column, names)} cannot hold labels and identifiers at once"
        )
    if names is not None and width > 1 and names[0] == "" and 0 not in left_out and label_column != 0:
        left_out[0] = "0"
        notes.append(f"{path.name}: the first column has no name and is left out as the names of the samples")
    features = [j for j in range(width) if j not in left_out and j != label_column]
    if not features:
        raise FileFormatError(f"{path} has no columns left that could be features")
    if names is not None:
        _warn_of_labels(path, [names[j] for j in features])

    underscores = any("_" in line for line in lines[1 if header and not transpose else 0 :])
    X, label_cells = _convert(path, itertools.chain(sample, rows), features, label_column, names, decimal, underscores)
    return Text(
        X,
        None if names is None else tuple(names[j] or f"x{j}" for j in features),
        None if label_column is None else _as_labels(label_cells),
        {
            "format": "text",
            "delimiter": _DELIMITER_NAMES[delimiter],
            "decimal_mark": decimal,
            "header": bool(header),
            "labels": None if label_column is None else _plain_name(label_column, names),
            "index_columns": [_plain_name(j, names) for j in left_out],
            "transposed": transpose,
        },
        tuple(notes),
    )


# --- bytes to rows of cells ----------------------------------------------------------------------------------------


def _lines(path: Path) -> tuple[list[str], str | None, int]:
    """The lines from the first that is neither empty nor a comment; the comment above it; its number, from 1."""
    raw = path.read_bytes()
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = raw.decode("utf-16", errors="replace")
    elif b"\x00" in raw[:4096]:
        raise FileFormatError(f"{path} is not text: it holds zero bytes")
    else:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")  # only names can be affected
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    comment = None
    for i, line in enumerate(lines):
        if line.startswith("#"):
            comment = line.lstrip("# ")
        elif line.strip():
            return lines[i:], comment, i + 1
    raise FileFormatError(f"{path} is empty" if comment is None else f"{path} holds comments only")


def _split(line: str, delimiter: str) -> list[str]:
    """The cells of one line, for guessing; a line that csv gives up on (too long for one cell) is one cell."""
    if delimiter == " ":
        return line.split()
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return [line]


def _find_delimiter(lines: Sequence[str]) -> str:
    """The delimiter under which most cells are numbers and the rows agree in length; a comma for a single column."""
    sample = [line for line in lines[: 4 * _SAMPLE_ROWS] if line.strip()][:_SAMPLE_ROWS]
    best, best_score = ",", (-1.0, -1.0)
    for delimiter in _DELIMITERS:
        rows = [_split(line, delimiter) for line in sample]
        ((width, agreeing),) = Counter(len(row) for row in rows[1:] or rows).most_common(1)
        if width < 2:
            continue
        cells = [cell.strip() for row in rows[1:] or rows for cell in row]
        numbers = sum(_is_number(c, ".") or (delimiter != "," and _is_number(c, ",")) or _is_missing(c) for c in cells)
        score = (round(numbers / len(cells), 2), agreeing / len(rows))
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _cut(path: Path, lines: Sequence[str], delimiter: str, first_line: int) -> Iterator[_Row]:
    """Rows of equal length.

    A first row that is one short gains an empty cell in front, as R writes headers, and a last column that is
    empty in the first two rows is taken for a delimiter at the end of every line.
    """
    numbered = _numbered_cells(path, lines, delimiter, first_line)
    (first_number, first), *second = itertools.islice(numbered, 2)
    ends_empty = False
    if second:
        cells = second[0][1]
        ends_empty = len(cells) > 2 and cells[-1].strip() == ""
        if len(first) == len(cells) - 1 and not any(_is_number(c.strip(), ".") for c in first):
            first = [*first, ""] if ends_empty else ["", *first]
        ends_empty = ends_empty and first[-1].strip() == ""
    width = len(first)
    for number, cells in itertools.chain([(first_number, first)], second, numbered):
        if len(cells) != width:
            raise FileFormatError(
                f"{path}, line {number}: {len(cells)} value{'' if len(cells) == 1 else 's'} "
                f"where the lines above have {width} (delimiter: {_DELIMITER_NAMES[delimiter]})"
            )
        if ends_empty and cells[-1].strip():
            raise FileFormatError(
                f"{path}, line {number}: a value in the last column, which is empty in the lines above"
            )
        yield _Row(f"line {number}", cells[:-1] if ends_empty else cells)


def _numbered_cells(
    path: Path, lines: Sequence[str], delimiter: str, first_line: int
) -> Iterator[tuple[int, list[str]]]:
    if delimiter == " ":
        for i, line in enumerate(lines):
            if cells := line.split():
                yield first_line + i, cells
        return
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, skipinitialspace=True)
    while True:
        number = first_line + reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise FileFormatError(f"{path}, line {number}: {error}; is a quotation mark never closed?") from error
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield number, cells


def _turned(rows: Iterable[_Row]) -> Iterator[_Row]:
    for j, column in enumerate(zip(*(row.cells for row in rows), strict=True)):
        yield _Row(f"column {j + 1}", column)


# --- what cells are ------------------------------------------------------------------------------------------------


def _is_missing(cell: str) -> bool:
    return cell.lower() in _MISSING


def _number(cell: str, decimal: str) -> float:
    """As float, without the underscores that Python allows, and with the decimal mark given."""
    if "_" in cell:
        raise ValueError(cell)
    return float(cell if decimal == "." else cell.replace(",", "."))


def _is_number(cell: str, decimal: str) -> bool:
    try:
        _number(cell, decimal)
    except ValueError:
        return False
    return True


def _find_decimal(path: Path, cells: Sequence[str], lines: Sequence[str], delimiter: str) -> str:
    if delimiter == ",":
        return "."
    with_comma = [c for c in cells if _COMMA_NUMBER.fullmatch(c)]
    with_point = any("." in c and _is_number(c, ".") for c in cells)
    if not with_comma and not with_point:  # whole numbers so far: look at the rest
        later = (re.search(r"(?<![\w,.])\d*[,.]\d+(?![\w,.])", line) for line in lines)
        first = next((match.group() for match in later if match), "")
        with_comma = [first] if "," in first else []
    if not with_comma or with_point:
        return "."
    if all(_THOUSANDS.fullmatch(c) for c in with_comma):
        warnings.warn(
            f"{path.name}: the comma of {with_comma[0]} is read as a decimal mark; "
            f"if it separates thousands, take it out of the file",
            DufsWarning,
            stacklevel=user_stacklevel(),
        )
    return ","


def _counts_from_zero(cells: Sequence[str]) -> bool:
    """Whether the cells, after an empty first one, are 0, 1, 2, ... and at least two."""
    counted = cells[1:] if cells[0] == "" else cells
    return len(counted) >= 2 and list(counted) == [str(j) for j in range(len(counted))]


def _looks_like_header(rows: Sequence[Sequence[str]], decimal: str) -> bool:
    """Whether the first row names columns.

    It does if at least half of its cells over columns of numbers are not numbers, or if it counts 0, 1, 2, ...
    (frames without names are written so) over at least 10 columns, or after an empty cell.
    """
    first, rest = [c.strip() for c in rows[0]], rows[1:]
    if not rest:
        return not any(_is_number(c, decimal) for c in first)
    if _counts_from_zero(first) and (first[0] == "" or len(first) >= _SURELY_COUNTED):
        return True
    over_numbers = [
        c
        for j, c in enumerate(first)
        if not _is_missing(c) and any(_is_number(row[j].strip(), decimal) for row in rest)
    ]
    names = [c for c in over_numbers if not _DIGITS_ONLY.fullmatch(c) and not _is_number(c, decimal)]
    return bool(over_numbers) and 2 * len(names) >= len(over_numbers)


# --- columns -------------------------------------------------------------------------------------------------------


def _plain_name(column: int, names: Sequence[str] | None) -> str | int:
    return names[column] if names is not None and names[column] else column


def _called(column: int, names: Sequence[str] | None) -> str:
    """The name and number of a column, or only the number where it has no name."""
    name = _plain_name(column, names)
    return f'"{name}" (number {column})' if isinstance(name, str) else f"number {column}"


def _column(path: Path, wanted: str, names: Sequence[str] | None, width: int) -> int:
    """The position of a column given by name, or by number from 0 (negative: from the end)."""
    if names is not None and wanted in names:
        if names.count(wanted) > 1:
            places = ", ".join(str(j) for j, name in enumerate(names) if name == wanted)
            raise FileFormatError(f'{path} has several columns "{wanted}"; give the number of the one meant ({places})')
        return names.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        pass
    else:
        if -width <= number < width:
            return number % width
        raise FileFormatError(f"{path} has columns 0 to {width - 1}, but no column {number}")
    if names is None:
        raise FileFormatError(f'{path} has no header, so "{wanted}" names no column; give its number, 0 to {width - 1}')
    shown = ", ".join(f'"{name}"' for name in names[:8]) + (f", ... ({width} in all)" if width > 8 else "")
    raise FileFormatError(f'{path} has no column "{wanted}"; its columns are {shown}')


def _warn_of_labels(path: Path, names: Sequence[str]) -> None:
    suspicious = [name for name in names if name.lower() in _NOT_FEATURES]
    if suspicious:
        warnings.warn(
            f'{path.name}: the column "{suspicious[0]}" is used as a feature; if it holds labels or identifiers, '
            f'leave it out with --labels "{suspicious[0]}" or --index-column "{suspicious[0]}"',
            DufsWarning,
            stacklevel=user_stacklevel(),
        )


def _as_labels(cells: Sequence[str]) -> Array:
    """Whole numbers where all are, else text."""
    try:
        return np.array([int(cell) for cell in cells])
    except ValueError:
        return np.array(cells)


# --- cells to numbers ----------------------------------------------------------------------------------------------


def _convert(
    path: Path,
    rows: Iterable[_Row],
    features: Sequence[int],
    label_column: int | None,
    names: Sequence[str] | None,
    decimal: str,
    underscores: bool,
) -> tuple[Array, list[str]]:
    """The (n, d) numbers of the feature columns, and the cells of the label column."""
    leading = len(features) == features[-1] + 1
    convert: Callable[[str], float] = float if decimal == "." else lambda c: float(c.replace(",", "."))
    out, label_cells = [], []
    for row in rows:
        cells = row.cells[: len(features)] if leading else [row.cells[j] for j in features]
        try:
            if underscores and any("_" in cell for cell in cells):
                raise ValueError  # float would take 1_0 for 10
            numbers = np.fromiter(map(convert, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            numbers = _convert_carefully(path, row, cells, features, names, decimal)
        out.append(numbers)
        if label_column is not None:
            label_cells.append(row.cells[label_column].strip())
    return np.stack(out), label_cells


def _convert_carefully(
    path: Path, row: _Row, cells: Sequence[str], features: Sequence[int], names: Sequence[str] | None, decimal: str
) -> Array:
    """Missing values become NaN; any other text is an error that names its columns."""
    numbers = np.full(len(cells), np.nan)
    text = []
    for k, cell in enumerate(cells):
        cell = cell.strip()
        if not _is_missing(cell):
            try:
                numbers[k] = _number(cell, decimal)
            except ValueError:
                text.append(k)
    if text:
        example = cells[text[0]].strip()
        example = example if len(example) <= 30 else example[:27] + "..."
        if len(text) == 1:
            which = f"column {_called(features[text[0]], names)} holds text"
        else:
            listed = ", ".join(_called(features[k], names) for k in text[:5])
            which = f"columns {listed}{f' and {len(text) - 5} more' if len(text) > 5 else ''} hold text"
        name = _plain_name(features[text[0]], names)
        option = f'"{name}"' if isinstance(name, str) and not name.isidentifier() else name
        raise FileFormatError(
            f'{path}, {row.place}: {which} ("{example}"); features are numbers: '
            f"leave labels out with --labels {option}, identifiers with --index-column {option}"
        )
    return numbers
