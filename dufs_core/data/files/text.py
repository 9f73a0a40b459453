"""Tables in text files: delimiter, decimal mark and header are found by looking, and said in what is returned."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from textwrap import shorten

import numpy as np

from dufs_core.backend import Array
from dufs_core.backend.memory import check_room
from dufs_core.data.files.table import MISSING, Table
from dufs_core.errors import DufsWarning, FileFormatError, user_stacklevel

_DELIMITERS = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar", " ": "white space"}  # in order of preference
_SAMPLE_ROWS = 12  # that are looked at
_SURELY_COUNTED = 10  # a first row 0, 1, ..., 9 is no accident; a shorter one may be data
_DECIMAL = re.compile(r"[+-]?\d*[,.]\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_DIGITS_ONLY = re.compile(r"[-+\d.,' ]+")  # no name, whether or not it is a number as it stands
_DECIMAL_COMMA = str.maketrans(",.", ".x")
_NOT_FEATURES = frozenset({"label", "labels", "class", "classes", "target", "y", "id", "index", "sample", "cluster"})
_GROUPS = frozenset({"batch", "donor", "plate", "subject", "patient", "group", "groups"})


def read_text(
    path: Path,
    labels: str | None,
    groups: str | None,
    covariates: Sequence[str],
    transpose: bool,
    header: bool | None,
    index_columns: Sequence[str],
) -> Table:
    """The table of a text file; the parameters are those of `dufs_core.data.files.read_table`."""
    lines = _lines(path)
    begin = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), None)
    if begin is None:
        raise FileFormatError("it is empty, or holds comments only")
    filled = [line for line in lines[begin : begin + 4 * _SAMPLE_ROWS] if line.strip()]
    delimiter = _find_delimiter(filled[:_SAMPLE_ROWS])
    decimal = _find_decimal(path, islice(lines, begin, None), delimiter)
    rows = _rows(_cells(lines, begin, delimiter), delimiter)
    if transpose:
        turned = zip(*(cells for _, cells in rows), strict=True)
        rows = ((f"column {j}", list(cells)) for j, cells in enumerate(turned, 1))
    sample = list(islice(rows, _SAMPLE_ROWS))
    width = len(sample[0][1])
    names: Sequence[str] = ()
    if header is None:
        header = _looks_like_header([cells for _, cells in sample], decimal)
    if header:
        names = sample.pop(0)[1]
    elif begin and not transpose and len(cells := _split(lines[begin - 1].lstrip("# "), delimiter)) == width:
        names = cells  # as numpy.savetxt writes them
    if not sample:
        raise FileFormatError("it has a header and no rows of numbers")

    left_out = [_column(c, names, width) for c in index_columns]
    label_column = None if labels is None else _column(labels, names, width)
    if label_column in left_out:
        raise FileFormatError(f'"{labels}" cannot hold labels and identifiers at once')
    group_column = None if groups is None else _column(groups, names, width)
    if group_column in left_out:
        raise FileFormatError(f'"{groups}" cannot hold groups and identifiers at once')
    covariate_columns = [_column(c, names, width) for c in covariates]
    for given, j in zip(covariates, covariate_columns, strict=True):
        if j in (*left_out, group_column):
            other = "groups" if j == group_column else "identifiers"
            raise FileFormatError(f'"{given}" cannot hold covariates and {other} at once')
    notes = []
    told = (label_column, group_column, *covariate_columns)
    if names and width > 1 and names[0] == "" and 0 not in (*left_out, *told):
        left_out.append(0)
        notes.append(f"{path.name}: the first column has no name and is left out as the names of the samples")
    apart = {*left_out, *told} - {None}
    features: Sequence[int] = [j for j in range(width) if j not in apart] if apart else range(width)
    if not features:
        raise FileFormatError("it has no columns left that could be features")

    used = [names[j] for j in features] if names else []
    if suspicious := next((name for name in used if name.lower() in _NOT_FEATURES), None):
        _warn(
            f'{path.name}: the column "{suspicious}" is used as a feature; if it holds labels or identifiers, '
            f'leave it out with --labels "{suspicious}" or --index-column "{suspicious}"'
        )
    if suspicious := next((name for name in used if name.lower() in _GROUPS), None):
        _warn(
            f'{path.name}: the column "{suspicious}" is used as a feature; if rows belong together by it, leave it '
            f'out with --groups "{suspicious}"'
        )

    label_cells = []
    group_cells = []
    covariate_cells = []

    def numbers() -> Iterator[Array]:
        for place, cells in chain(sample, rows):
            if label_column is not None:
                label_cells.append(cells[label_column])
            if group_column is not None:
                group_cells.append(_group(place, cells[group_column], _which(names, group_column)))
            if covariate_columns:
                covariate_cells.append([_covariate(place, cells[j], names, j, decimal) for j in covariate_columns])
            own = [cells[j] for j in features] if apart else cells
            yield _convert(place, own, features, names, decimal)

    X = np.fromiter(numbers(), dtype=np.dtype((np.float64, (len(features),))))
    if len(features) > 1 and features[-1] == width - 1 and not (names and names[-1]) and np.isnan(X[:, -1]).all():
        X, features = X[:, :-1], features[:-1]  # every line ends with a delimiter
    read_as = {
        "format": "text", "delimiter": _DELIMITERS[delimiter], "decimal_mark": decimal, "header": header,
        "labels": None if label_column is None else _called(names, label_column),
        "index_columns": [_called(names, j) for j in left_out], "transposed": transpose,
    }  # fmt: skip
    if group_column is not None:
        read_as["groups"] = _called(names, group_column)
    if covariate_columns:
        read_as["covariates"] = [_called(names, j) for j in covariate_columns]
    feature_names = tuple(names[j] or f"x{j}" for j in features) if names else None
    whole = all(re.fullmatch(r"[+-]?\d{1,18}", cell) for cell in label_cells)
    found = np.array(label_cells, dtype=int if whole else str) if label_cells else None
    found_groups = np.array(group_cells) if group_cells else None  # as they are written: 01 may not be 1
    found_covariates = np.array(covariate_cells, dtype=np.float64) if covariate_cells else None
    return Table(X, read_as, feature_names, found, tuple(notes), found_groups, found_covariates)


def _group(place: str, cell: str, which: str) -> str:
    """The cell of a row that says its group, if it does."""
    if cell.lower() in MISSING:
        raise FileFormatError(
            f'{place}: column {which} has no group ("{cell}"); leave such rows out of the file, or give them a name '
            f"there if they are one group"
        )
    return cell


def _covariate(place: str, cell: str, names: Sequence[str], j: int, decimal: str) -> float:
    """The number in a cell of a covariate, if it is one."""
    number = _number(cell, decimal)
    which = _which(names, j)
    if number is None:
        raise FileFormatError(
            f'{place}: column {which} holds text ("{cell[:30]}"), and covariates are numbers: a class (batch, donor) '
            f'belongs into --groups "{_called(names, j)}"'
        )
    if np.isnan(number):
        raise FileFormatError(
            f'{place}: column {which} has no number ("{cell}"), and is a covariate; leave such rows out of the file'
        )
    return number


def _warn(sentence: str) -> None:
    warnings.warn(sentence, DufsWarning, stacklevel=user_stacklevel())


def _lines(path: Path) -> list[str]:
    raw = path.read_bytes()
    check_room(f"the lines of {path}", 3 * len(raw))
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if encoding != "utf-16" and b"\x00" in raw[:4096]:
        raise FileFormatError("it is not text: it holds zero bytes")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # only names can be affected
    del raw
    return re.split("\r\n|\r|\n", text)


def _split(line: str, delimiter: str) -> list[str]:
    """The cells of one line, roughly, for looking."""
    return [cell.strip().strip('"') for cell in line.split(None if delimiter == " " else delimiter)]


def _cells(lines: Sequence[str], begin: int, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """The place and the cells of every line that holds something."""
    body: Iterator[str] = islice(lines, begin, None)
    if delimiter == " ":
        body = (" ".join(line.split()) for line in body)
    reader, number = csv.reader(body, delimiter=delimiter, skipinitialspace=True), begin + 1
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield f"line {number}", [cell.strip() for cell in cells]
            number = begin + reader.line_num + 1
    except csv.Error as error:
        raise FileFormatError(f"line {number}: {error}; is a quotation mark never closed?") from error


def _rows(cells: Iterator[tuple[str, list[str]]], delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Rows of one length; a header that is one short gains a cell: in front, as R writes it, or over an empty last."""
    (at, first), *second = islice(cells, 2)
    for _, row in second:
        if len(first) == len(row) - 1 and not any(_is_number(cell, ".") for cell in first):
            first = ["", *first] if row[-1] else [*first, ""]
    for place, row in chain([(at, first)], second, cells):
        if len(row) != len(first):
            raise FileFormatError(
                f"{place}: {len(row)} value{'s' * (len(row) != 1)} where the lines above have {len(first)} "
                f"(delimiter: {_DELIMITERS[delimiter]})"
            )
        yield place, row


def _number(cell: str, decimal: str) -> float | None:
    """As float, without the underscores that Python allows; NaN for a missing value, None for text."""
    if cell.lower() in MISSING:
        return np.nan
    try:
        return None if "_" in cell else float(cell if decimal == "." else cell.translate(_DECIMAL_COMMA))
    except ValueError:
        return None


def _is_number(cell: str, decimal: str) -> bool:
    number = _number(cell, decimal)
    return number is not None and not np.isnan(number)


def _find_delimiter(lines: Sequence[str]) -> str:
    """The delimiter under which most cells are numbers and the rows agree in length; a comma for a single column."""
    best, best_score = ",", (-1.0, -1.0)
    for delimiter in _DELIMITERS:
        marks = "." if delimiter == "," else ".,"
        widths, numbers = [], 0
        for line in lines[1:] or lines:
            cells = _split(line, delimiter)  # of one line at a time: it may have millions
            widths.append(len(cells))
            numbers += sum(any(_number(cell, mark) is not None for mark in marks) for cell in cells)
        ((width, agreeing),) = Counter(widths).most_common(1)
        score = (round(numbers / sum(widths), 2), agreeing / len(lines))
        if width > 1 and score > best_score:
            best, best_score = delimiter, score
    return best


def _find_decimal(path: Path, lines: Iterator[str], delimiter: str) -> str:
    """The mark of the first numbers that have one."""
    if delimiter == ",":
        return "."
    with_marks = (_split(line, delimiter) for line in lines if "," in line or "." in line)
    marked = ([cell for cell in cells if _DECIMAL.fullmatch(cell)] for cells in with_marks)
    found = [cell for cells in islice(filter(None, marked), _SAMPLE_ROWS) for cell in cells]
    if not found or any("." in cell for cell in found):
        return "."
    if all(_THOUSANDS.fullmatch(cell) for cell in found):
        example = f"{path.name}: the comma of {found[0]}"
        _warn(f"{example} is read as a decimal mark; if it separates thousands, take it out of the file")
    return ","


def _looks_like_header(rows: Sequence[Sequence[str]], decimal: str) -> bool:
    """Whether the first row names columns.

    It does if at least half of its cells over columns of numbers are not numbers, or if it counts 0, 1, 2, ...
    (frames without names are written so) over at least 10 columns, or after an empty cell.
    """
    first, *rest = rows
    if not rest:
        return not any(_is_number(cell, decimal) for cell in first)
    counted = first[1:] if first[0] == "" else first
    if counted == [str(j) for j in range(len(counted))] and (first[0] == "" or len(first) >= _SURELY_COUNTED):
        return True
    columns = zip(first, zip(*rest, strict=True), strict=True)
    over = [
        cell for cell, below in columns
        if cell.lower() not in MISSING and any(_is_number(c, decimal) for c in below)
    ]  # fmt: skip
    names = [cell for cell in over if not _DIGITS_ONLY.fullmatch(cell) and not _is_number(cell, decimal)]
    return bool(over) and 2 * len(names) >= len(over)


def _column(wanted: str, names: Sequence[str], width: int) -> int:
    """The position of a column given by name, or by number from 0 (negative: from the end)."""
    places = [j for j, name in enumerate(names) if name == wanted]
    if not places and re.fullmatch(r"-?\d+", wanted) and -width <= int(wanted) < width:
        return int(wanted) % width
    if len(places) == 1:
        return places[0]
    shown = shorten(", ".join(f'"{name}"' for name in names) if names else "no header", 300, placeholder=" ...")
    found = f"several columns {wanted!r} ({', '.join(map(str, places))})" if places else f"no column {wanted!r}"
    raise FileFormatError(f"it has {found}; give a number from 0 to {width - 1}, or a name; it has {shown}")


def _called(names: Sequence[str], j: int) -> str | int:
    """The name of a column, else its number."""
    return (names[j] if names else "") or j


def _which(names: Sequence[str], j: int) -> str:
    """A column in a sentence: its name and number."""
    name = _called(names, j)
    return f'"{name}" (number {j})' if isinstance(name, str) else f"number {name}"


def _convert(place: str, cells: Sequence[str], features: Sequence[int], names: Sequence[str], decimal: str) -> Array:
    """The numbers of a row; missing values become NaN, and text is an error that names its column."""
    if decimal == "." and "_" not in "".join(cells):
        with suppress(ValueError):
            return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    numbers = [_number(cell, decimal) for cell in cells]
    if None in numbers:
        k = numbers.index(None)
        name = _called(names, features[k])
        which = _which(names, features[k])
        raise FileFormatError(
            f'{place}: column {which} holds text ("{cells[k][:30]}"); features are numbers: leave labels out '
            f'with --labels "{name}", identifiers with --index-column "{name}", batches or donors with --groups '
            f'"{name}"'
        )
    return np.array(numbers, dtype=np.float64)
