//! What holds for any bytes in the files of an agent. The function takes the input of a fuzz target of `fuzz/` and panics where a
//! property is broken. It stands here because what it calls is private. Nothing of Stoker calls it.

use std::fs;
use std::io;
use std::path::Path;

use crate::ledger::Ledger;

/// A ledger in an empty directory: whatever the file holds, the agent starts, or refuses the file and leaves it alone; what was
/// read is written and read again without a loss.
pub fn ledger(bytes: &[u8], scratch: &Path) -> io::Result<()> {
    let path = scratch.join("ledger.json");
    fs::write(&path, bytes)?;
    match Ledger::load(&path) {
        Err(problem) => assert_eq!(fs::read(&path)?, bytes, "{problem}"),
        Ok(ledger) => {
            let kept = path.exists() || fs::read(path.with_extension("broken"))? == bytes;
            assert!(kept, "a ledger that makes no sense is kept beside the new one");
            ledger.save(&path)?;
            let again = Ledger::load(&path);
            assert!(again.is_ok_and(|again| again == ledger), "a ledger is written and read again: {ledger:?}");
        }
    }
    Ok(())
}
