//! One file per command; this one only hands over.

pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod dead;
pub(crate) mod dead_letter;
pub(crate) mod decrypt;
pub(crate) mod demo;
pub(crate) mod demo_app;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod enqueue;
pub(crate) mod import;
pub(crate) mod inbox;
pub(crate) mod incarnation;
pub(crate) mod init;
pub(crate) mod locate;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod pause;
pub(crate) mod preflight;
pub(crate) mod prune;
pub(crate) mod reload;
pub(crate) mod rewind;
pub(crate) mod run;
mod run_admin;
pub(crate) mod schema;
pub(crate) mod sinks;
pub(crate) mod skip;
pub(crate) mod status;
pub(crate) mod tail;
#[cfg(unix)]
pub(crate) mod top;
#[cfg(unix)]
pub(crate) mod torture;
pub(crate) mod verify;

use crate::args::{Cli, Command};
use crate::failure::Failure;

/// Runs the command that was asked for.
pub(crate) fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Migrate(command) => migrate::run(&command),
        Command::Enqueue(command) => enqueue::run(&command),
        Command::Run(command) => run::run(&command, run::Others::StandBy),
        Command::Runservice(command) => run::run(&command, run::Others::End),
        Command::Status(command) => status::run(&command),
        #[cfg(unix)]
        Command::Top(command) => top::run(&command),
        Command::Tail(command) => tail::run(&command),
        Command::Dead(command) => dead::run(&command),
        Command::DeadLetter(command) => dead_letter::run(&command),
        Command::Inbox(command) => inbox::run(&command),
        Command::Pause(command) => pause::pause(&command),
        Command::Resume(command) => pause::resume(&command),
        Command::Drain(command) => drain::run(&command),
        Command::Skip(command) => skip::run(&command),
        Command::Reload(command) => reload::run(&command),
        Command::Rewind(command) => rewind::run(&command),
        Command::Audit(command) => audit::run(&command),
        Command::Import(command) => import::run(&command),
        Command::Preflight(command) => preflight::run(&command),
        Command::Verify(command) => verify::run(&command),
        Command::Prune(command) => prune::run(&command),
        Command::Where(command) => locate::run(&command),
        Command::Adopt(command) => incarnation::adopt(&command),
        Command::FastForward(command) => incarnation::fast_forward(&command),
        Command::Backup(command) => backup::backup(&command),
        Command::Restore(command) => backup::restore(&command),
        Command::Doctor(command) => doctor::run(&command),
        Command::Bench(command) => bench::run(&command),
        Command::Decrypt(command) => decrypt::run(&command),
        Command::Check(command) => check::run(&command),
        Command::Init(command) => init::run(&command),
        Command::Demo(command) => demo::run(&command),
        Command::DemoApp(command) => demo_app::run(&command),
        #[cfg(unix)]
        Command::Torture(command) => torture::run(&command),
        #[cfg(unix)]
        Command::TortureProducer(command) => torture::produce(&command),
        Command::Schema(command) => schema::run(&command),
        Command::Sinks(command) => sinks::run(&command),
        Command::Completions(command) => completions::run(&command),
        Command::Man(command) => man::run(&command),
    }
}
