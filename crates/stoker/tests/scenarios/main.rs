//! The same scenarios on both: each as a test against `stoker up`, the API in the box with agents in one process; and all of
//! them on a real API server where `STOKER_TEST_KUBECONFIG` names an administrator's kubeconfig. There, controller and agents
//! are processes with tokens of their own accounts, and commands are those of somebody who may edit one namespace: what RBAC
//! and the admission policy of `stoker install` do not allow, no scenario can do. What this suite made is removed,
//! before and after. A cluster with a Stoker or with jobs of others is left alone, unless `STOKER_TEST_CLUSTER` says that it
//! was made for tests.
//!
//! ```text
//! cargo xtask cluster exec -- cargo test -p stoker --test scenarios real
//! ```
//!
//! `STOKER_TEST_ONLY` is a part of the names of those to run there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod heartbeat;
mod own;
mod real;
mod rights;
#[path = "../it/bed.rs"]
#[allow(dead_code)]
mod up;

/// Declares the modules, a test against `stoker up` for each scenario, and the list for a real server.
macro_rules! scenarios {
    ($($module:ident: $($name:ident),+;)+) => {
        $(mod $module;)+

        mod embedded {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    crate::$module::$name(&crate::bed::Site::Embedded).await;
                })+
            })+
        }

        const ALL: &[bed::Scenario] = &[
            $($((concat!(stringify!($module), "::", stringify!($name)), |site| Box::pin($module::$name(site))),)+)+
        ];
    };
}

scenarios! {
    credentials: a_private_registry_with_right_wrong_two_and_rotated_secrets,
        an_imagepulljob_pulls_with_secrets_that_cannot_be_changed;
    jobs: why_says_what_each_node_waits_for_and_delete_stops_it,
        after_the_end_a_job_is_told_of_by_its_own_reports_and_then_by_its_status,
        a_job_that_joins_a_pull_sees_how_far_it_is_and_nothing_is_counted_away, objects_and_nodes_are_printed;
    kruise: the_samples_of_the_article_run, upstreams_refusals_are_the_schemas, what_upstream_accepts_is_accepted,
        pull_secrets_of_a_list_can_be_changed, a_list_whose_children_are_refused_says_so_and_ends_after_an_edit;
    kubectl: the_examples_are_applied_shown_and_deleted;
    mistakes: every_mistake_is_answered_with_the_thing_and_the_next_step;
    needs: an_order_that_needs_what_an_agent_lacks_fails_and_others_go_on;
    pull: an_image_reaches_every_node_and_is_there_the_second_time,
        nodes_look_for_a_tag_that_others_have_and_who_lacks_it_gets_it,
        an_image_costs_a_node_two_writes_and_those_that_ask_two_more,
        failed_nodes_are_named_with_their_reasons_while_others_go_on, only_the_nodes_that_were_asked_for,
        ctrl_c_stops_following_and_not_the_job;
    rotated: a_pull_that_is_refused_goes_on_with_the_secret_that_came_meanwhile;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_on_a_real_server() {
    match std::env::var("STOKER_TEST_KUBECONFIG") {
        Ok(kubeconfig) => bed::on_real(&kubeconfig, ALL).await,
        Err(_) => println!("SKIPPED: {} scenarios on a real server need STOKER_TEST_KUBECONFIG", ALL.len()),
    }
}
