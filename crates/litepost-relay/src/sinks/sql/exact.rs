//! Whether a column keeps a value as it is, for databases that would change it without a word.
//!
//! Called by the MySQL and PostgreSQL sessions for parameters that a statement stores as they are (`dialect::Assigned`).
//! Invariant: a value that the column would round or cut is refused with the reason before it is sent. Not judged: `real`
//! and `float` columns keep fewer digits of every float, which is what they are for.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use litepost_core::{Rejection, Value};

use crate::dialect::{Assigned, Column};

/// Statement texts remembered before the memory is emptied.
const TEXTS_MAX: usize = 1_024;

/// What a column keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Not judged here: the database itself refuses what does not fit.
    Anything,
    /// Whole numbers.
    Whole,
    /// Decimals with so many digits behind the point.
    Scaled(i32),
    /// 64-bit floats.
    Double,
    /// 32-bit floats.
    Single,
    /// Moments with so many digits of a second.
    Seconds(i32),
    /// A date or a time of day.
    Part,
}

/// A column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) name: String,
    pub(crate) holds: Holds,
}

/// What is known of tables, and of the parameters of statements.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    tables: HashMap<String, Arc<[Held]>>,
    texts: HashMap<String, Arc<[(usize, Held)]>>,
}

impl Columns {
    /// The tables may have changed: they are asked for again.
    pub(crate) fn clear(&mut self) {
        self.tables.clear();
        self.texts.clear();
    }

    /// Whether the columns of `assigned` must be told first.
    pub(crate) fn misses(&self, assigned: &Assigned) -> bool {
        !self.tables.contains_key(&assigned.written)
    }

    /// Tells the columns of a table, in their order.
    pub(crate) fn tell(&mut self, assigned: &Assigned, columns: Vec<Held>) {
        self.tables.insert(assigned.written.clone(), columns.into());
    }

    /// Refuses a value that its column would change.
    pub(crate) fn check(&mut self, sql: &str, assigned: &Assigned, values: &[Value]) -> Result<(), Rejection> {
        let judged = match self.texts.get(sql) {
            Some(judged) => Arc::clone(judged),
            None => self.judged(sql, assigned),
        };
        for (at, column) in judged.iter() {
            let Some(value) = values.get(*at) else { continue };
            if let Err(why) = column.holds.check(value) {
                let message = format!(
                    "parameter {}: the column {} {why}; where that is meant, let the statement say it, as in round(?, 2)",
                    at + 1,
                    column.name
                );
                return Err(Rejection::new("22023", message));
            }
        }
        Ok(())
    }

    fn judged(&mut self, sql: &str, assigned: &Assigned) -> Arc<[(usize, Held)]> {
        let Some(columns) = self.tables.get(&assigned.written) else { return Arc::new([]) };
        let found = |column: &Column| match column {
            Column::At(place) => columns.get(*place),
            Column::Named(name) => columns.iter().find(|c| c.name.to_lowercase() == name.to_lowercase()),
        };
        let judged = assigned.columns.iter().filter_map(|(at, column)| Some((*at, found(column)?.clone())));
        let judged: Arc<[(usize, Held)]> = judged.filter(|(_, column)| column.holds != Holds::Anything).collect();
        if self.texts.len() >= TEXTS_MAX {
            self.texts.clear();
        }
        self.texts.insert(sql.to_owned(), Arc::clone(&judged));
        judged
    }
}

impl Holds {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "whether something is lost is asked"
    )]
    fn check(self, value: &Value) -> Result<(), String> {
        let digits = |text: &str, kept: i32| match Number::read(text) {
            Some(number) if number.fraction() > kept => {
                Err(format!("would round {text} to {kept} digits behind the point"))
            }
            _ => Ok(()),
        };
        let exact = |is: bool, text: &dyn std::fmt::Display| {
            if is { Ok(()) } else { Err(format!("holds floats, and would change {text}")) }
        };
        match (self, value) {
            (Self::Whole, Value::Real(r)) => digits(&format!("{r:?}"), 0),
            (Self::Whole, Value::Decimal(t) | Value::Text(t)) => digits(t, 0),
            (Self::Scaled(kept), Value::Real(r)) => digits(&format!("{r:?}"), kept),
            (Self::Scaled(kept), Value::Decimal(t) | Value::Text(t)) => digits(t, kept),
            (Self::Double, Value::Integer(i)) => exact((*i as f64) as i128 == i128::from(*i), i),
            (Self::Single, Value::Integer(i)) => exact((*i as f32) as i128 == i128::from(*i), i),
            (Self::Double | Self::Single, Value::Decimal(t)) => {
                let nearest = t.parse::<f64>().ok().and_then(|float| Number::read(&format!("{float:?}")));
                exact(Number::read(t).is_none_or(|number| nearest == Some(number)), t)
            }
            (Self::Seconds(kept), Value::Timestamp(t) | Value::Text(t)) if second_digits(t) > kept => {
                Err(format!("would cut {t} to {kept} digits of a second"))
            }
            (Self::Part, Value::Timestamp(t)) if t.parse::<Timestamp>().is_ok() => {
                Err(format!("would keep a part of {t} only; send that part as text"))
            }
            _ => Ok(()),
        }
    }
}

/// A moment with the precision that every database here can keep, or why not.
pub(crate) fn moment(database: &str, text: &str) -> Result<Timestamp, String> {
    let at: Timestamp = text.parse().map_err(|e| format!("{text:?} is no RFC 3339 timestamp: {e}"))?;
    if at.subsec_nanosecond() % 1_000 != 0 {
        return Err(format!("{database} keeps microseconds, and {text:?} is finer"));
    }
    Ok(at)
}

/// Digits of a second that mean something.
fn second_digits(text: &str) -> i32 {
    let Some((_, fraction)) = text.rsplit_once('.') else { return 0 };
    let digits: String = fraction.chars().take_while(char::is_ascii_digit).collect();
    i32::try_from(digits.trim_end_matches('0').len()).unwrap_or(i32::MAX)
}

/// A decimal number: the digits that mean something, and the place of the point before (positive: behind) them.
#[derive(Debug, PartialEq, Eq)]
struct Number {
    negative: bool,
    digits: String,
    point: i32,
}

impl Number {
    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let unsigned = mantissa.strip_prefix(['-', '+']).unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let all = format!("{whole}{fraction}");
        if all.is_empty() || !all.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_start_matches('0');
        let leading = i32::try_from(all.len() - digits.len()).ok()?;
        let digits = digits.trim_end_matches('0').to_owned();
        let point = i32::try_from(whole.len()).ok()?.checked_sub(leading)?.checked_add(exponent)?;
        let (negative, point) = if digits.is_empty() { (false, 0) } else { (mantissa.starts_with('-'), point) };
        Some(Self { negative, digits, point })
    }

    /// Digits behind the point.
    fn fraction(&self) -> i32 {
        i32::try_from(self.digits.len()).unwrap_or(i32::MAX).saturating_sub(self.point).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_it_means() {
        for (text, fraction) in
            [("12.30", 1), ("-0.00", 0), ("1e-3", 3), ("1.5e1", 0), ("12300", 0), ("0.000123", 6), ("1.25E1", 1)]
        {
            assert_eq!(Number::read(text).unwrap().fraction(), fraction, "{text}");
        }
        assert_eq!(Number::read("1.50"), Number::read("15e-1"));
        assert_ne!(Number::read("1.5"), Number::read("-1.5"));
        for text in ["", "x", "1.2.3", "NaN", "0x12", "1e", "e5"] {
            assert_eq!(Number::read(text), None, "{text}");
        }
    }

    #[test]
    fn what_a_column_would_change_is_refused() {
        let decimal = |t: &str| Value::Decimal(t.into());
        let moment = |t: &str| Value::Timestamp(t.into());
        for (holds, kept, changed) in [
            (Holds::Whole, vec![Value::Real(2.0), decimal("3.0"), Value::Null], vec![Value::Real(1.5), decimal("3.1")]),
            (Holds::Scaled(2), vec![Value::Real(0.1), decimal("1.20")], vec![Value::Real(0.125), decimal("1.239")]),
            (
                Holds::Double,
                vec![Value::Integer(1 << 60), decimal("0.1"), Value::Real(0.1)],
                vec![Value::Integer((1 << 53) + 1), decimal("12345678901234567890.5")],
            ),
            (Holds::Single, vec![Value::Integer(1 << 24), Value::Real(0.1)], vec![Value::Integer((1 << 24) + 1)]),
            (
                Holds::Seconds(3),
                vec![moment("2026-11-30T04:05:06.789Z"), moment("2026-11-30T04:05:06.700000+02:00")],
                vec![moment("2026-11-30T04:05:06.7891Z"), Value::Text("2026-11-30 04:05:06.7891".into())],
            ),
            (Holds::Part, vec![Value::Text("2026-11-30".into())], vec![moment("2026-11-30T04:05:06Z")]),
        ] {
            for value in kept {
                assert_eq!(holds.check(&value), Ok(()), "{holds:?} {value:?}");
            }
            for value in changed {
                assert!(holds.check(&value).is_err(), "{holds:?} {value:?}");
            }
        }
    }
}
