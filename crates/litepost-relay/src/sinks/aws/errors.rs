//! What AWS's error codes mean: this event, or the destination.
//!
//! Called for refused requests and for refused entries of one. Invariant: only what the service says of the message or of
//! its queue or topic is a rejection; whatever else is an outage and costs no event an attempt.

use litepost_core::{Outcome, Rejection, Unavailable, UnavailableKind};

/// Why a request, or an entry of one, was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The service's code; empty when it has not answered.
    pub(super) code: String,
    /// For people.
    pub(super) text: String,
    /// The status of the answer; 0 for an entry, and when there was none.
    pub(super) status: u16,
    /// What it is when nothing else tells.
    pub(super) otherwise: UnavailableKind,
}

impl Failure {
    /// An answer that did not come, or makes no sense.
    pub(super) fn unanswered(otherwise: UnavailableKind, text: impl Into<String>) -> Self {
        Self { code: String::new(), text: text.into(), status: 0, otherwise }
    }

    /// What the service says of one entry.
    pub(super) fn entry(code: &str, text: Option<&str>, of_the_sender: bool) -> Self {
        // Where the code tells nothing: a fault of the sender is the event's, any other the service's own.
        let status = if of_the_sender { 400 } else { 0 };
        Self { code: code.into(), text: text.unwrap_or_default().into(), status, otherwise: UnavailableKind::Server }
    }

    /// Whether it may be one of several events that was at fault.
    pub(super) fn is_of_an_event(&self) -> bool {
        matches!(self.outcome(""), Outcome::Rejected(_))
    }

    /// What it means for an event that was alone in it.
    pub(super) fn outcome(&self, shown: &str) -> Outcome {
        // `com.amazonaws.sqs#QueueDoesNotExist`, `AWS.SimpleQueueService.NonExistentQueue`: the last word is the code.
        let word = self.code.rsplit(['#', '.']).next().unwrap_or_default();
        let text =
            if word.is_empty() { format!("{shown}: {}", self.text) } else { format!("{shown}: {word}: {}", self.text) };
        let unavailable = |kind| Outcome::Unavailable(Unavailable::new(kind, text.clone()));
        match word {
            "BatchRequestTooLong"
            | "InvalidMessageContents"
            | "InvalidParameterValue"
            | "InvalidParameter"
            | "InvalidParameterException"
            | "ParameterValueInvalid"
            | "InvalidAttributeValue" => Outcome::Rejected(Rejection::never(word, text)),
            // To be made by somebody else.
            "NonExistentQueue"
            | "QueueDoesNotExist"
            | "QueueDeletedRecently"
            | "NotFound"
            | "NotFoundException"
            | "InvalidAddress" => Outcome::Rejected(Rejection::hold(word, text)),
            _ if word.contains("Throttl") => unavailable(UnavailableKind::Throttled),
            "TooManyRequestsException" | "SlowDown" | "OverLimit" | "RequestLimitExceeded" => {
                unavailable(UnavailableKind::Throttled)
            }
            _ if is_denied(word) => unavailable(UnavailableKind::Denied),
            _ => match self.status {
                0 | 500.. => unavailable(self.otherwise),
                401 | 403 => unavailable(UnavailableKind::Denied),
                429 => unavailable(UnavailableKind::Throttled),
                _ => Outcome::Rejected(Rejection::new(word, text)),
            },
        }
    }
}

/// User, key, permissions, or the key that the queue encrypts with.
fn is_denied(word: &str) -> bool {
    word.starts_with("AccessDenied")
        || word.starts_with("Kms")
        || word.starts_with("KMS")
        || word.contains("Token")
        || matches!(
            word,
            "AuthorizationError"
                | "AuthorizationErrorException"
                | "AuthFailure"
                | "SignatureDoesNotMatch"
                | "IncompleteSignature"
                | "UnrecognizedClientException"
                | "InvalidSecurity"
                | "InvalidAccessKeyId"
                | "OptInRequired"
                | "NotAuthorized"
                | "UnauthorizedOperation"
        )
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    #[test]
    fn codes_are_what_counts() {
        let word = |code: &str, status| {
            let otherwise = UnavailableKind::Server;
            match (Failure { code: code.into(), text: "x".into(), status, otherwise }).outcome("sqs") {
                Outcome::Rejected(rejection) => format!("{:?}", rejection.retry),
                Outcome::Unavailable(trouble) => format!("{:?}", trouble.kind),
                other => format!("{other:?}"),
            }
        };
        let hint = |hint: RetryHint| format!("{hint:?}");
        for (code, status, expected) in [
            ("AWS.SimpleQueueService.NonExistentQueue", 400, hint(RetryHint::Hold)),
            ("com.amazonaws.sqs#QueueDoesNotExist", 400, hint(RetryHint::Hold)),
            ("NotFound", 404, hint(RetryHint::Hold)),
            ("AWS.SimpleQueueService.BatchRequestTooLong", 400, hint(RetryHint::Never)),
            ("InvalidParameterValue", 400, hint(RetryHint::Never)),
            ("AWS.SimpleQueueService.UnsupportedOperation", 400, hint(RetryHint::Policy)),
            ("RequestThrottled", 400, "Throttled".into()),
            ("ThrottlingException", 400, "Throttled".into()),
            ("KmsThrottled", 400, "Throttled".into()),
            ("KmsAccessDenied", 400, "Denied".into()),
            ("AccessDeniedException", 400, "Denied".into()),
            ("InvalidClientTokenId", 403, "Denied".into()),
            ("ExpiredToken", 403, "Denied".into()),
            ("InternalFailure", 500, "Server".into()),
            ("ServiceUnavailable", 503, "Server".into()),
            // An entry that the service itself has failed on.
            ("InternalError", 0, "Server".into()),
            ("", 0, "Server".into()),
        ] {
            assert_eq!(word(code, status), expected, "{code}");
        }
    }
}
