-- The ledger. Workers in any language write to it with the statements in README.md.

-- The largest token that anyone has shown for a lock. Nothing that comes with a smaller one is written.
CREATE TABLE fence (
    lock  TEXT PRIMARY KEY,
    token INTEGER NOT NULL
);

CREATE TABLE entry (
    position INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of posting
    id       TEXT NOT NULL UNIQUE,
    date     TEXT NOT NULL,
    text     TEXT NOT NULL,
    token    INTEGER NOT NULL,
    worker   TEXT NOT NULL
);

CREATE TABLE line (
    entry   TEXT NOT NULL REFERENCES entry (id),
    account TEXT NOT NULL,
    cents   INTEGER NOT NULL -- debit above zero, credit below
);
