//! The delivery pipeline of one lane of one destination, as a state machine without I/O.

mod types;

pub use types::{
    Action, BlockedLine, BlockedState, Counters, DeadLetter, Delivery, DeliveryId, DeliveryOrder, Finish, Health,
    LaneState, OnDead, PipelineConfig, Settlement, SettlementId,
};
