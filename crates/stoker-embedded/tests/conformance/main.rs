//! What a Kubernetes API does, behaviour by behaviour: each as a test of the embedded API, and all of them on a real API server
//! where `STOKER_TEST_KUBECONFIG` names a kubeconfig that may do everything there. A real one needs the controllers for
//! namespaces and garbage collection; the tests use namespaces and names of their own and leave nothing behind. One run at a
//! time: what another left, or is still using, goes first.
//!
//! ```text
//! cargo xtask cluster exec -- cargo test -p stoker-embedded --test conformance real
//! ```
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/real.rs"]
mod real;
mod server;

/// Declares the modules, a test of the embedded API for each behaviour, and the list for a real server.
macro_rules! behaviours {
    ($($module:ident: $($name:ident),+;)+) => {
        $(mod $module;)+

        mod embedded {
            $(mod $module {
                $(#[tokio::test]
                async fn $name() {
                    crate::$module::$name(crate::server::embedded().await).await;
                })+
            })+
        }

        const ALL: &[server::Behaviour] = &[
            $($((concat!(stringify!($module), "::", stringify!($name)), |server| Box::pin($module::$name(server))),)+)+
        ];
    };
}

behaviours! {
    discovery: every_kind_is_found_both_ways, short_names_and_categories, aggregated_documents_say_their_form,
        openapi_lets_kubectl_apply_and_explain;
    errors: each_refusal_is_a_status, causes_name_every_wrong_field, options_are_refused_by_the_name_of_their_method,
        wrong_media_types, a_body_has_a_bound;
    kinds: what_no_client_can_read_is_refused, a_body_need_not_say_what_the_url_says,
        items_of_built_in_kinds_do_not_say_what_they_are, a_namespace_has_its_name_as_a_label,
        secrets_hold_what_their_type_says, an_event_is_where_its_object_is,
        webhooks_are_objects_like_others;
    lifecycle: a_finalizer_holds_an_object, preconditions_are_kept, dependents_go_with_their_last_owner,
        a_dependent_of_nobody_goes, propagation_policies, a_circle_of_owners_ends, a_circle_ends_in_the_foreground_too,
        a_cluster_scoped_owner_takes_its_dependents_along, a_namespace_goes_with_all_that_is_in_it,
        the_default_namespace_stays, a_collection_is_deleted_by_selector, definitions_come_and_go_at_run_time;
    lists: selectors_select, pages_show_one_moment, one_kind_in_two_versions, events_are_the_same_under_both_names,
        pods_are_found_by_node, pods_are_watched_by_label_and_node, versions_that_are_not;
    schemas: a_transition_rule_compares_with_what_is_stored, a_default_comes_back_when_its_field_is_taken_away,
        status_is_validated_too;
    streams: a_streaming_list_marks_its_end, a_watch_of_the_state_marks_its_end, kube_watches_by_streaming_list;
    tables: columns_of_the_definition, built_in_kinds_have_columns, metadata_alone;
    versions: every_verb_works_in_either_version, columns_are_those_of_the_version, versions_that_were_stored_are_remembered;
    watches: a_watch_begins_where_it_is_told, selectors_make_objects_come_and_go,
        a_watch_of_one_name_hears_of_one_object, the_timeout_ends_a_watch, kube_watches_by_list_and_watch,
        kube_watches_by_pages, a_no_op_write_is_no_event;
    writes: a_new_object_is_complete, names_are_generated, an_update_wants_the_version_it_read,
        a_built_in_kind_may_be_updated_blindly, patches_merge, a_patch_cannot_make_another_object,
        a_finalizer_that_anybody_might_use_is_warned_of, lists_of_built_in_kinds_merge_by_key,
        status_and_spec_are_apart, writing_the_same_changes_nothing, labels_do_not_touch_the_generation,
        a_dry_run_leaves_no_trace, misspelt_fields_are_named, fields_given_twice_are_named, secrets_take_plain_text,
        concurrent_patches_all_arrive;
}

#[tokio::test]
async fn a_real_server_behaves_the_same() {
    match std::env::var("STOKER_TEST_KUBECONFIG") {
        Ok(kubeconfig) => server::on_real(&kubeconfig, ALL).await,
        Err(_) => println!("SKIPPED: {} behaviours on a real server need STOKER_TEST_KUBECONFIG", ALL.len()),
    }
}
