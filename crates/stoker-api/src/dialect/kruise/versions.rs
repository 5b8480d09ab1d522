//! Which versions of upstream's kinds there are. The schemas of both are the same, and so are their objects: conversion is None.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceConversion, CustomResourceDefinition,
};
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use kube_core::{CustomResourceExt, Resource};
use serde_json::{Value, json};

use super::{ImageListPullJob, ImagePullJob, NodeImage};
use crate::dialect::foreign_crd;

/// The older version, which is served as well. Releases of OpenKruise before 1.9 serve this one alone.
const OLDER: &str = "v1alpha1";

/// A kind of upstream's that is served in two versions.
pub trait Versioned: Resource<DynamicType = ()> + CustomResourceExt {
    /// Columns that only the older version has, behind the others.
    fn older_columns() -> Vec<CustomResourceColumnDefinition> {
        Vec::new()
    }

    /// What upstream's webhook says of an object without a spec, where it refuses one.
    fn without_spec() -> Option<&'static str> {
        Some("image can not be empty")
    }

    /// What an object that has no status yet shows as its status. An API server fills it in when it reads the object, so it costs no write.
    fn without_status() -> Option<Value> {
        None
    }
}

impl Versioned for ImagePullJob {
    fn older_columns() -> Vec<CustomResourceColumnDefinition> {
        vec![CustomResourceColumnDefinition {
            name: "MESSAGE".into(),
            type_: "string".into(),
            json_path: ".status.message".into(),
            ..Default::default()
        }]
    }
}

impl Versioned for ImageListPullJob {}

impl Versioned for NodeImage {
    fn without_spec() -> Option<&'static str> {
        None
    }

    /// Otherwise the columns of a NodeImage would be empty until its first tag.
    fn without_status() -> Option<Value> {
        Some(json!({ "desired": 0, "succeeded": 0, "failed": 0, "pulling": 0, "waiting": 0 }))
    }
}

/// How the kind is found on an API server, the newest version first. Our own CRD serves both; a CRD of upstream's may serve the
/// last one alone.
pub fn versions<K: Versioned>() -> [ApiResource; 2] {
    let newest = ApiResource::erase::<K>(&());
    let older =
        ApiResource { version: OLDER.into(), api_version: format!("{}/{OLDER}", newest.group), ..newest.clone() };
    [newest, older]
}

/// The version in which an object was read, so that it is written in the same: where it does not say, the newest.
pub(super) fn version_of<K: Versioned>(object: &DynamicObject) -> ApiResource {
    let [newest, older] = versions::<K>();
    let said = object.types.as_ref().map(|types| types.api_version.as_str());
    if said == Some(older.api_version.as_str()) { older } else { newest }
}

/// The CRD of a kind: both versions are served, the newest is stored.
pub fn crd<K: Versioned>() -> CustomResourceDefinition {
    let mut definition = K::crd();
    definition.spec.conversion = Some(CustomResourceConversion { strategy: "None".into(), webhook: None });
    foreign_crd::as_upstream(&mut definition, K::without_spec(), K::without_status());
    let older = definition.spec.versions.first().cloned().map(|mut older| {
        (older.name, older.storage) = (OLDER.into(), false);
        older.additional_printer_columns.get_or_insert_default().extend(K::older_columns());
        older
    });
    definition.spec.versions.splice(0..0, older);
    definition
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion;
    use serde_json::json;

    fn columns(version: &CustomResourceDefinitionVersion) -> String {
        let columns = version.additional_printer_columns.iter().flatten();
        columns.map(|column| column.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_versions_are_served_with_one_schema_and_the_newest_is_stored() {
        let columns_of = [
            (crd::<ImagePullJob>(), ["TOTAL ACTIVE SUCCEED FAILED AGE MESSAGE", "TOTAL ACTIVE SUCCEED FAILED AGE"]),
            (crd::<ImageListPullJob>(), ["TOTAL SUCCEEDED COMPLETED AGE", "TOTAL SUCCEEDED COMPLETED AGE"]),
            (crd::<NodeImage>(), ["DESIRED PULLING SUCCEED FAILED AGE", "DESIRED PULLING SUCCEED FAILED AGE"]),
        ];
        for (definition, wanted) in columns_of {
            assert_eq!(definition.spec.conversion.as_ref().unwrap().strategy, "None");
            let [older, newest] = definition.spec.versions.as_slice() else { panic!("two versions") };
            let flags = |version: &CustomResourceDefinitionVersion| {
                (version.name.clone(), version.served, version.storage, version.subresources.is_some())
            };
            assert_eq!(flags(older), ("v1alpha1".into(), true, false, true));
            assert_eq!(flags(newest), ("v1beta1".into(), true, true, true));
            assert_eq!(older.schema, newest.schema);
            assert_eq!([columns(older), columns(newest)], wanted);
            let text = serde_json::to_string(&newest.schema).unwrap();
            assert!(!text.contains("nullable"), "a null is a field that was left out");
        }
    }

    /// Otherwise its columns would be empty.
    #[test]
    fn a_node_image_that_has_no_status_yet_counts_no_tags() {
        let status = |definition: CustomResourceDefinition| {
            let versions = definition.spec.versions.into_iter();
            let schemas = versions.map(|version| serde_json::to_value(version.schema).unwrap());
            schemas
                .map(|schema| schema["openAPIV3Schema"]["properties"]["status"]["default"].clone())
                .collect::<Vec<_>>()
        };
        let zeros = json!({ "desired": 0, "succeeded": 0, "failed": 0, "pulling": 0, "waiting": 0 });
        assert_eq!(status(crd::<NodeImage>()), [zeros.clone(), zeros]);
        assert_eq!(
            status(crd::<ImagePullJob>()),
            [Value::Null, Value::Null],
            "whether a job has begun is told by its status"
        );
    }

    #[test]
    fn an_object_is_written_in_the_version_in_which_it_was_read() {
        let [newest, older] = versions::<ImagePullJob>();
        assert_eq!(
            (newest.api_version.as_str(), older.api_version.as_str()),
            ("apps.kruise.io/v1beta1", "apps.kruise.io/v1alpha1")
        );
        assert_eq!((newest.plural.as_str(), older.version.as_str()), ("imagepulljobs", "v1alpha1"));
        let object = |api_version: &str| -> DynamicObject {
            serde_json::from_value(json!({ "apiVersion": api_version, "kind": "ImagePullJob", "metadata": {} }))
                .unwrap()
        };
        assert_eq!(version_of::<ImagePullJob>(&object("apps.kruise.io/v1alpha1")), older);
        assert_eq!(version_of::<ImagePullJob>(&object("apps.kruise.io/v1beta1")), newest);
        let untyped: DynamicObject = serde_json::from_value(json!({ "metadata": {} })).unwrap();
        assert_eq!(version_of::<ImagePullJob>(&untyped), newest);
    }
}
