//! The statements of a run, and what a database must hold after them.
//!
//! Called by the crash runs. Invariant: a statement reads and writes rows of its own key only, so the end depends on
//! the order within each key and on nothing else; applied twice, or not at all, each of them leaves a trace.

use std::collections::BTreeMap;

use litepost_core::Value;

/// Keys, each a line of its own.
const KEYS: u64 = 40;
/// Ids of a key start at its number times this.
const IDS_PER_KEY: i64 = 1_000_000;
/// Numbers stay below this.
const MODULUS: i64 = 1_000_003;

/// A sequence of numbers that a seed repeats (SplitMix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn number(&mut self) -> i64 {
        i64::try_from(self.below(1_000)).unwrap()
    }
}

/// A statement of the run.
pub(crate) struct Step {
    pub(crate) key: String,
    pub(crate) sql: &'static str,
    pub(crate) values: Vec<Value>,
}

#[derive(Clone)]
struct Row {
    n: i64,
    note: String,
}

/// What must be in the database.
pub(crate) struct Model {
    chance: Chance,
    upsert: &'static str,
    rows: Vec<BTreeMap<i64, Row>>,
    next_id: Vec<i64>,
    steps: i64,
    journal: Vec<(usize, i64)>,
    /// Statements that no database accepts.
    pub(crate) dead: i64,
    /// How often each kind came.
    pub(crate) kinds: BTreeMap<&'static str, u64>,
}

impl Model {
    pub(crate) fn new(seed: u64, upsert: &'static str) -> Self {
        let keys = usize::try_from(KEYS).unwrap();
        Self {
            chance: Chance(seed),
            upsert,
            rows: vec![BTreeMap::new(); keys],
            next_id: (1..).step_by(usize::try_from(IDS_PER_KEY).unwrap()).take(keys).collect(),
            steps: 0,
            journal: Vec::new(),
            dead: 0,
            kinds: BTreeMap::new(),
        }
    }

    /// `stock`, one line per row.
    pub(crate) fn stock(&self) -> Vec<String> {
        let rows = self.rows.iter().enumerate().flat_map(|(k, rows)| rows.iter().map(move |(id, row)| (k, id, row)));
        rows.map(|(k, id, row)| format!("{id}|{k}|{}|{}", row.n, row.note)).collect()
    }

    /// `journal`, in the order of its key and step.
    pub(crate) fn journal(&self) -> Vec<String> {
        let mut journal = self.journal.clone();
        journal.sort_unstable();
        journal.iter().map(|(k, step)| format!("{k}|{step}")).collect()
    }

    /// The next statement, which the model has applied when this returns.
    pub(crate) fn step(&mut self) -> Step {
        self.steps += 1;
        let k = usize::try_from(self.chance.below(KEYS)).unwrap();
        let (kind, sql, values) = self.choose(k);
        *self.kinds.entry(kind).or_default() += 1;
        Step { key: format!("key-{k}"), sql, values }
    }

    fn choose(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let kind = if self.rows[k].is_empty() { 0 } else { self.chance.below(100) };
        match kind {
            0..25 => self.insert(k),
            25..45 => self.update_one(k),
            45..50 => self.update_many(k),
            50..60 => self.delete(k),
            60..68 => self.insert_select(k),
            68..80 => self.upsert(k),
            80..87 => self.several_rows(k),
            87..91 => self.with(k),
            91..99 => self.journal_entry(k),
            _ => self.poison(k),
        }
    }

    fn note(&self) -> String {
        format!("it's \u{2116} {}", self.steps)
    }

    fn new_id(&mut self, k: usize) -> i64 {
        self.next_id[k] += 1;
        self.next_id[k]
    }

    fn some_id(&mut self, k: usize) -> i64 {
        let at = self.chance.below(u64::try_from(self.rows[k].len()).unwrap());
        *self.rows[k].keys().nth(usize::try_from(at).unwrap()).unwrap()
    }

    fn put(&mut self, k: usize, id: i64, n: i64, note: &str) {
        self.rows[k].insert(id, Row { n, note: note.to_owned() });
    }

    fn insert(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let (id, n, note) = (self.new_id(k), self.chance.number(), self.note());
        self.put(k, id, n, &note);
        ("INSERT", "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)", vec![int(id), key(k), int(n), text(note)])
    }

    fn update_one(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let (id, more) = (self.some_id(k), self.chance.number());
        let row = self.rows[k].get_mut(&id).unwrap();
        row.n += more;
        ("UPDATE", "UPDATE stock SET n = n + ?1 WHERE id = ?2", vec![int(more), int(id)])
    }

    fn update_many(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let more = self.chance.number();
        for row in self.rows[k].iter_mut().filter(|(id, _)| *id % 3 == 0).map(|(_, row)| row) {
            row.n = (row.n * 31 + more) % MODULUS;
        }
        let sql = "UPDATE stock SET n = (n * 31 + ?) % 1000003 WHERE k = ? AND id % 3 = 0";
        ("UPDATE of many rows", sql, vec![int(more), key(k)])
    }

    fn delete(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let id = self.some_id(k);
        self.rows[k].remove(&id);
        ("DELETE", "DELETE FROM stock WHERE id = $1", vec![int(id)])
    }

    fn insert_select(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let (from, to, note) = (self.some_id(k), self.new_id(k), self.note());
        let n = self.rows[k][&from].n;
        self.put(k, to, n, &note);
        let sql = "INSERT INTO stock (id, k, n, note) SELECT ?, k, n, ? FROM stock WHERE id = ?";
        ("INSERT ... SELECT", sql, vec![int(to), text(note), int(from)])
    }

    fn upsert(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let id = if self.chance.below(2) == 0 { self.some_id(k) } else { self.new_id(k) };
        let (n, note) = (self.chance.number(), self.note());
        let before = self.rows[k].get(&id).map_or(0, |row| row.n);
        self.put(k, id, before + n, &note);
        ("upsert", self.upsert, vec![int(id), key(k), int(n), text(note)])
    }

    fn several_rows(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let (first, second, n, note) = (self.new_id(k), self.new_id(k), self.chance.number(), self.note());
        self.put(k, first, n, &note);
        self.put(k, second, n + 1, &note);
        let sql = "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?), (?, ?, ?, ?)";
        let mut values = vec![int(first), key(k), int(n), text(note.clone())];
        values.extend([int(second), key(k), int(n + 1), text(note)]);
        ("INSERT of several rows", sql, values)
    }

    fn with(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        let (id, note) = (self.new_id(k), self.note());
        let sum: i64 = self.rows[k].values().map(|row| row.n).sum();
        self.put(k, id, sum % MODULUS, &note);
        let sql =
            "INSERT INTO stock (id, k, n, note) WITH w AS (SELECT k, sum(n) AS s FROM stock WHERE k = ? GROUP BY k)
                   SELECT ?, k, s % 1000003, ? FROM w";
        ("WITH", sql, vec![key(k), int(id), text(note)])
    }

    /// A table without a key: a statement applied twice would be there twice.
    fn journal_entry(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        self.journal.push((k, self.steps));
        ("INSERT without a key", "INSERT INTO journal (k, step) VALUES (?, ?)", vec![key(k), int(self.steps)])
    }

    fn poison(&mut self, k: usize) -> (&'static str, &'static str, Vec<Value>) {
        self.dead += 1;
        let id = self.new_id(k);
        let sql = "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)";
        ("refused by a CHECK", sql, vec![int(id), key(k), int(-1), text(self.note())])
    }
}

fn int(n: i64) -> Value {
    Value::Integer(n)
}

fn key(k: usize) -> Value {
    Value::Integer(i64::try_from(k).unwrap())
}

fn text(text: String) -> Value {
    Value::Text(text)
}
