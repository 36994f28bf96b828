//! The contract of the port to ZooKeeper, held against each of its adapters.
//!
//! A case is a function over a [`World`](world::World) and knows nothing of what is behind it. [`real`] runs all
//! of them through the client crate against real servers, and [`simulated`] in a simulated one, so that the
//! simulator can be believed; [`differential`] goes on by chance where the cases end. What only a wire can show
//! is in [`wire`], what servers do not say on demand in [`scripted`], and who may speak to them in
//! [`credentials`].

// A test that panics has done its work.
#![allow(clippy::unwrap_used)]

mod credentials;
mod differential;
mod multi;
mod names;
mod operations;
mod real;
mod refusal;
mod rights;
mod scripted;
mod sessions;
mod simulated;
mod watches;
mod wire;
mod world;

/// Makes a test of every case, in the world that `hold` of the surrounding module makes.
macro_rules! hold_to_the_contract {
    () => {
        crate::cases! {
            operations {
                create_answers_with_the_name_and_the_stat,
                a_container_looks_persistent,
                create_says_why_it_fails,
                paths_that_cannot_be_are_refused,
                the_server_numbers_what_is_sequential,
                the_counter_restarts_with_its_parent,
                a_parent_remembers_its_children,
                delete_says_why_it_fails,
                anyone_may_delete_an_ephemeral,
                data_is_replaced_by_version,
                reading_what_is_not_there,
                a_reader_that_syncs_sees_every_write,
            }
            multi {
                all_parts_happen_together,
                later_parts_see_earlier_ones,
                one_failure_undoes_all,
                a_check_alone_changes_nothing,
                an_empty_one_is_refused,
            }
            watches {
                a_data_watch_fires_once,
                a_data_watch_on_nothing_leaves_none,
                an_exists_watch_sees_creation_change_and_deletion,
                a_child_watch_sees_children_come_and_go,
                deletion_fires_every_kind_of_watch,
                a_watch_fires_before_a_reply_that_shows_the_change,
                watches_on_one_path_are_independent,
                a_dropped_watch_makes_room_for_another,
                a_multi_fires_watches,
                a_session_end_fires_watches_of_others,
                the_end_of_the_connection_fires_watches,
                an_event_goes_before_the_reply_to_its_cause_however_close_they_are,
            }
            sessions {
                a_new_session_is_what_was_asked_for,
                a_session_outlives_its_connection,
                re_attaching_ends_the_older_connection,
                a_session_without_a_connection_expires,
                heartbeats_keep_a_session,
                closing_removes_ephemerals_at_once,
                aborting_ends_everything_but_the_session,
                dropping_a_connection_leaves_its_session,
                requests_are_answered_in_the_order_of_the_calls,
                a_dropped_reply_does_not_take_the_request_back,
                a_given_up_attempt_to_connect_does_no_harm,
            }
        }
    };
}
pub(crate) use hold_to_the_contract;

/// Makes a test of each of these cases, in the world that `hold` of the surrounding module makes.
macro_rules! cases {
    ($($module:ident { $($case:ident,)* })*) => {
        $(mod $module {
            $(
                #[test]
                fn $case() {
                    super::hold(async |world| crate::$module::$case(world).await);
                }
            )*
        })*
    };
}
pub(crate) use cases;
