//! When consecutive equal INSERTs may travel as one statement of several rows.
//!
//! Called by the session for runs of the same text. Invariant: rows are joined only where the table has nothing that
//! could tell one statement of many rows from many statements: no trigger, no rule, no policy, no foreign key into
//! itself, no domain, no default, check or index expression that calls a function of the user's. The question is asked
//! again inside the transaction, behind the joined rows: their lock keeps all of these from being added until it ends.

use tokio_postgres::Client;

/// Rows of a joined statement, largest first; each is prepared once.
const ROWS: [usize; 4] = [128, 32, 8, 2];
/// The protocol counts parameters in 16 bits; half of it is plenty.
const PARAMETERS_MAX: usize = 16_384;

/// One row when rows for the table `$1` (as written in the statement) may be joined, and none otherwise.
pub(super) const INDIFFERENT: &str = "SELECT 1 FROM pg_class c
  WHERE c.oid = to_regclass($1) AND c.relkind = 'r' AND NOT c.relhasrules AND NOT c.relrowsecurity AND NOT c.relispartition
  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.confrelid = c.oid)
  AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
  AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
  AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND t.typtype = 'd')
  AND NOT EXISTS (SELECT FROM pg_attrdef x JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = x.oid
    WHERE x.adrelid = c.oid AND d.refclassid = 'pg_proc'::regclass)
  AND NOT EXISTS (SELECT FROM pg_constraint x JOIN pg_depend d ON d.classid = 'pg_constraint'::regclass AND d.objid = x.oid
    WHERE x.conrelid = c.oid AND d.refclassid = 'pg_proc'::regclass)
  AND NOT EXISTS (SELECT FROM pg_index x JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = x.indexrelid
    WHERE x.indrelid = c.oid AND d.refclassid = 'pg_proc'::regclass)";

/// Whether rows for `table` may be joined, as far as can be seen now.
pub(super) async fn indifferent(client: &Client, table: &str) -> bool {
    matches!(client.query_opt(INDIFFERENT, &[&table]).await, Ok(Some(_)))
}

/// Cuts a run of `rows` equal INSERTs with `params` parameters each into pieces; a piece of 1 is sent as it is.
pub(super) fn pieces(mut rows: usize, params: usize) -> Vec<usize> {
    let mut pieces = Vec::new();
    for size in ROWS.into_iter().filter(|size| size * params.max(1) <= PARAMETERS_MAX) {
        while rows >= size {
            pieces.push(size);
            rows -= size;
        }
    }
    pieces.extend(std::iter::repeat_n(1, rows));
    pieces
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn a_run_is_cut_without_a_rest() {
        for (rows, params) in [(0, 3), (1, 3), (500, 5), (129, 20_000), (300, 200), (131, 1)] {
            let cut = pieces(rows, params);
            assert_eq!(cut.iter().sum::<usize>(), rows);
            assert!(cut.iter().all(|&n| n == 1 || n * params <= super::PARAMETERS_MAX), "{cut:?}");
        }
    }
}
