//! What happens to the network between an actor and the server.

use std::time::Duration;

use forelock_testkit::proxy::boot_time_ns;
use forelock_testkit::{Flow, Rule, Scope};

use super::Play;
use super::steps::Came;
use crate::scenario::{NetVerb, RuleFate, RuleVerb};

impl Play<'_> {
    pub(super) fn net(&mut self, actor: &str, what: &NetVerb, patience: Duration) -> Came {
        let at = boot_time_ns();
        if !matches!(what, NetVerb::Mark | NetVerb::AwaitRule | NetVerb::Rule(_)) {
            self.note("net", actor, None, at);
        }
        let player = self.player_mut(actor)?;
        let proxy = &player.proxy;
        match what {
            NetVerb::Cut(how) => {
                proxy.refuse();
                proxy.cut(*how);
            }
            NetVerb::Drop(how) => drop(proxy.cut(*how)),
            NetVerb::BlackHole(flow) => proxy.blackhole(*flow, Scope::All),
            NetVerb::Stall(flow) => proxy.stall(*flow, Scope::All),
            NetVerb::Resume => proxy.resume(Flow::Both),
            NetVerb::Refuse => proxy.refuse(),
            NetVerb::Restore => proxy.restore().map_err(|error| error.to_string())?,
            NetVerb::Delay(each_way) => proxy.delay(*each_way, *each_way, Scope::All),
            NetVerb::Rule(verb) => player.rule = Some(proxy.install(rule(verb))),
            NetVerb::AwaitRule => {
                let rule =
                    player.rule.as_ref().ok_or_else(|| format!("there is no rule on {actor}'s line"))?;
                rule.wait_fired(patience).map_err(|error| error.to_string())?;
            }
            NetVerb::Mark => player.mark = proxy.journal().mark(),
        }
        Ok(("ok".to_owned(), None))
    }
}

fn rule(verb: &RuleVerb) -> Rule {
    let mut rule = match &verb.fate {
        RuleFate::DropRequest(ops) => Rule::drop_request(ops.clone()),
        RuleFate::DropReply(ops) => Rule::drop_reply(ops.clone()),
        RuleFate::HoldRequest(ops) => Rule::hold_request(ops.clone()),
        RuleFate::HoldReply(ops) => Rule::hold_reply(ops.clone()),
        RuleFate::DropEvent(kind) => Rule::drop_event(*kind),
        RuleFate::HoldEvent(kind) => Rule::hold_event(*kind),
    }
    .nth(verb.nth);
    if let Some(path) = &verb.path {
        rule = rule.path_contains(path);
    }
    match verb.then {
        Some(how) => rule.then_cut(how),
        None => rule,
    }
}
