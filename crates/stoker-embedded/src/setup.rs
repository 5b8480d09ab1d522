//! What is there before the first request. In: the built-in rows, the journal, the definitions of the settings. Out: a store with
//! all of them, durable. Definitions that were given win over stored ones of the same name; objects stay.

use crate::journal::Journal;
use crate::kind::{Role, Served};
use crate::object::{Key, metadata_mut, text};
use crate::refusal::Refusal;
use crate::store::{Place, Store};
use crate::write::{Keeper, Options, Target};
use crate::{Error, Settings, crd, rows};
use serde_json::{Value, json};
use std::sync::Arc;

/// Namespaces that are there from the start.
pub(crate) const NAMESPACES: [&str; 2] = ["default", "stoker-system"];

/// Opens the journal, if there is to be one, and fills the store.
pub(crate) fn keeper(settings: Settings) -> Result<Keeper, Error> {
    let store = match &settings.journal {
        Some(path) => {
            let (journal, contents) = Journal::open(path)?;
            Store::of(journal, contents)
        }
        None => Store::new(),
    };
    furnish(store, settings)
}

/// Defines the kinds, makes the namespaces and reconciles the definitions, then starts the journal.
pub(crate) fn furnish(store: Store, settings: Settings) -> Result<Keeper, Error> {
    for kind in rows::kinds().map_err(|e| Error::Setup(e.to_string()))? {
        store.adopt(Arc::new(kind));
    }
    adopt_stored(&store);
    let mut keeper = Keeper { store: Arc::new(store), clock: settings.clock };
    for name in NAMESPACES {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ensure(&keeper, Role::Namespace, object, |_, _| {}).map_err(|refusal| Error::Setup(refusal.message))?;
    }
    for definition in settings.crds {
        let name = text(&definition, "name").to_owned();
        let made = ensure(&keeper, Role::Definition, definition, renew);
        made.map_err(|refusal| Error::Definition { name, why: refusal.message })?;
    }
    // Nobody else has it yet.
    let only =
        Arc::get_mut(&mut keeper.store).ok_or_else(|| Error::Setup("the store is shared too early".to_owned()))?;
    only.start()?;
    for table in keeper.store.unknown_tables() {
        tracing::warn!(%table, "the journal has objects of a kind that is not defined; they are kept and not served");
    }
    Ok(keeper)
}

/// Kinds whose definitions are in the journal.
fn adopt_stored(store: &Store) {
    let catalog = store.catalog();
    let Some(definitions) = catalog.kinds().find(|kind| kind.role == Role::Definition) else { return };
    for place in store.inside_table(&definitions.table) {
        let Some(object) = store.get(&place) else { continue };
        match crd::kind(&object.value) {
            Ok(kind) => store.adopt(Arc::new(kind)),
            Err(error) => {
                let name = place.key.name;
                tracing::warn!(%name, %error, "a stored definition is not understood by this version; its kind is not served");
            }
        }
    }
}

/// Creates an object, or makes what is stored agree with it.
fn ensure(keeper: &Keeper, role: Role, object: Value, renew: impl FnOnce(&mut Value, Value)) -> Result<(), Refusal> {
    let catalog = keeper.store.head_catalog();
    let kind = catalog.kinds().find(|kind| kind.role == role);
    let served = kind.and_then(Served::stored).ok_or_else(Refusal::no_such_resource)?;
    let name = text(&object, "name").to_owned();
    let place = Place { table: served.kind.table.clone(), key: Key::new("", &name) };
    let target = |name: String| Target { served, namespace: String::new(), name, status: false };
    let options = Options::default();
    let Some(stored) = keeper.store.head(&place) else {
        return keeper.create(&target(String::new()), object, options).map(drop);
    };
    let mut wanted = stored.value.clone();
    renew(&mut wanted, object);
    keeper.update(&target(name), wanted, options).map(drop)
}

/// The new schema wins; what others wrote into the metadata stays.
fn renew(stored: &mut Value, given: Value) {
    stored["spec"] = given["spec"].clone();
    for field in ["labels", "annotations"] {
        let Some(Value::Object(given)) = given.pointer(&format!("/metadata/{field}")) else { continue };
        let slot = metadata_mut(stored).entry(field).or_insert_with(|| json!({}));
        crate::object::object_mut(slot).extend(given.clone());
    }
}
