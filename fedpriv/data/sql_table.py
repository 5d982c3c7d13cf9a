"""A table from a database, encoded with public settings only."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.base import Split
from fedpriv.data.table_encoder import Table, TableEncoder, check_columns, format_cell
from fedpriv.data.table_split import TableReader, read_split, read_train_columns
from fedpriv.errors import ConfigError, DataError, FedprivError, summarize_error
from fedpriv.settings import validate_arguments

if TYPE_CHECKING:  # an extra
    from sqlalchemy import Engine

_NO_PASSWORD = (
    "contains a password, which would be printed and stored with the settings: put the URL into an environment "
    "variable, and set url: $NAME_OF_THE_VARIABLE"
)


@validate_arguments("data")
def sql(
    *,
    url: str,
    train: str,
    test: str,
    label: str,
    classes: Sequence[str | int] | None = None,
    numbers: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, Sequence[str | int]] | None = None,
    missing: Mapping[str, float | int | str] | None = None,
    indicators: Sequence[str] = (),
    client: str | None = None,
    key: str | None = None,
    bias: bool = True,
    centered: bool = False,
    scales: Mapping[str, tuple[float, float]] | None = None,
) -> Split:
    """Reads tables or views of a database through SQLAlchemy, one example a row; for the settings see `csv`.

    Only the columns in the settings are read. There is no setting for a query: create a view instead.

    Args:
        url: SQLAlchemy's URL of the database, such as `sqlite:///patients.db`; or `$NAME`, an environment variable that
            contains it. A URL with a password must be in an environment variable.
        train: The table or view with the clients' examples, `NAME` or `SCHEMA.NAME`.
        test: The same for public examples; accuracies are computed on them without noise.
        label: Column of the class, or of the number to predict.
        classes: The values of that column, in the order of the class numbers; None is regression.
        numbers: For each numeric column its range `[low, high]`, from public knowledge. It is mapped to [-1, 1];
            a value outside the range is replaced with the nearest end.
        categories: For each categorical column its values, which become one 0/1 feature each.
        missing: For a column, the public value that replaces a missing one (NULL), see `TableEncoder`.
        indicators: Columns with an additional 0/1 feature, which is 1 if the value is missing.
        client: Column with the client of each row, for `partition: {kind: by_writer}`; it is public.
        key: Column by which rows are sorted, because databases guarantee no order and the assignment of rows to
            simulated clients may depend on the order. Use a column by which a row does not move when another row
            changes, such as the patient's number. None is the primary key; a view has none, so it needs a key.
        bias: Add a constant feature.
        centered: Make the 0/1 features of each categorical column add up to 0, which needs less noise; see
            `TableEncoder`.
        scales: For a numeric column its public or private [centre, scale], see `TableEncoder`.

    Raises:
        ConfigError: If the extra `sql` or a driver is missing, the URL contains a password, or a table lacks a column.
        DataError: If the database or table cannot be read, or a value is missing without a rule, not a number or not
            listed; the message contains table and row.
    """
    encoder = TableEncoder(
        label, classes, numbers or {}, categories or {}, missing or {}, indicators, bias, centered, scales or {}
    )
    with _table_reader(url, key) as read:
        return read_split(encoder, read, train, test, client=client, suffix=None)


def columns(names: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Returns columns of the clients' table; see `read_columns` of the registry."""
    with _table_reader(options["url"], options.get("key")) as read:
        return read_train_columns(read, options["train"], names, None)


@contextmanager
def _table_reader(url: str, key: str | None) -> Generator[TableReader]:
    """Opens a database; yields a function that reads its tables."""
    engine = _engine(url)

    def read(name: str, columns: Sequence[str]) -> Table:
        return _table(engine, name, columns, key)

    try:
        yield read
    finally:
        engine.dispose()


def _engine(url: str) -> Engine:
    try:
        import sqlalchemy
    except ImportError as error:
        raise ConfigError("data.name", "sql", "needs SQLAlchemy: pip install fedpriv[sql]") from error
    address = url
    if url.startswith("$"):
        address = os.environ.get(url[1:], "")
        if not address:
            raise ConfigError(
                "data.url",
                url,
                f"names an environment variable that is not set: set {url[1:]} to the URL of the database",
            )
    try:
        parsed = sqlalchemy.make_url(address)
        if not url.startswith("$") and parsed.password is not None:
            raise ConfigError("data.url", parsed.render_as_string(hide_password=True), _NO_PASSWORD)
        # SQLite would create a new, empty one
        if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
            raise DataError(f"data.url: database file {parsed.database} does not exist: correct the path")
        return sqlalchemy.create_engine(parsed)
    except FedprivError:
        raise
    except ImportError as error:
        fix = f"needs the database driver {error.name}, which is not installed: install it with pip"
        raise ConfigError("data.url", "(URL)", fix) from None
    except Exception:  # its message may contain the URL, and the URL a password
        fix = "is not a URL of SQLAlchemy: write it like sqlite:///patients.db or postgresql+psycopg://host/database"
        if not url.startswith("$"):
            url = "(given)"
        raise ConfigError("data.url", url, fix) from None


def _table(engine: Engine, name: str, columns: Sequence[str], key: str | None) -> Table:
    """Reads these columns of a table or view, in the order of its key."""
    import sqlalchemy
    from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

    schema, _, table_name = name.rpartition(".")
    try:
        inspector = sqlalchemy.inspect(engine)
        existing = [str(column["name"]) for column in inspector.get_columns(table_name, schema=schema or None)]
        if key is not None:
            keys = [key]
        else:
            keys: list[str] = inspector.get_pk_constraint(table_name, schema=schema or None)["constrained_columns"]
        if not keys:
            raise ConfigError(
                "data.key",
                None,
                f"is required, because {name} has no primary key: name a column by which its rows are sorted",
            )
        check_columns(name, [*columns, *keys], existing)
        table = sqlalchemy.table(table_name, *map(sqlalchemy.column, existing), schema=schema or None)
        query = sqlalchemy.select(*(table.c[column] for column in columns)).order_by(*(table.c[name] for name in keys))
        with engine.connect() as connection:
            rows = connection.execute(query).all()
    except ConfigError:
        raise
    except NoSuchTableError as error:
        raise DataError(f"table or view {name} does not exist: correct data.train or data.test") from error
    except SQLAlchemyError as error:
        reason = summarize_error(getattr(error, "orig", None) or error)
        raise DataError(
            f"table {name} cannot be read ({reason}): check data.url and the access rights of its database user"
        ) from None
    if not rows:
        raise DataError(f"table {name} has no rows: add at least one example")
    texts = {column: [format_cell(row[index]) for row in rows] for index, column in enumerate(columns)}
    return Table(f"table {name}", texts, first=0)
