//! What a caller may check: its workspace, its namespaces, its costs and its zones.

use super::checks::CheckRequest;
use super::problem::Problem;
use crate::api::LimitCheck;
use crate::api::permission::{Forbidden, Naming, Request};
use crate::auth::Caller;

/// The workspace of a request that names one or none.
pub(super) fn workspace<'a>(caller: &'a Caller, named: Option<&'a str>) -> Result<&'a [u8], Problem> {
    caller.workspace(named.map(str::as_bytes)).ok_or_else(|| {
        let message = "this token is for another workspace; leave the field out".to_owned();
        Problem::forbidden("workspace_not_allowed", "workspace".to_owned(), message)
    })
}

/// Checks that the caller may make these checks, and sets their workspace. `is_list`: they stand in `checks`.
pub(super) fn admit(
    mut request: CheckRequest,
    caller: &Caller,
    is_list: bool,
) -> Result<CheckRequest, Problem> {
    let workspace = workspace(caller, request.workspace.as_deref())?.to_vec();
    let mut permission = Request::default();
    for (index, check) in request.checks.iter_mut().enumerate() {
        check.workspace.clone_from(&workspace);
        let field = |name: &str| match is_list {
            true => format!("checks[{index}].{name}"),
            false => name.to_owned(),
        };
        permit(&mut permission, caller, check, field)?;
    }
    Ok(request)
}

/// Checks that the caller may make one more check of a request. `field` has the path of a field of this check.
pub(super) fn permit(
    permission: &mut Request,
    caller: &Caller,
    check: &LimitCheck,
    field: impl Fn(&str) -> String,
) -> Result<(), Problem> {
    match permission.forbidden(caller, check, Naming::Name) {
        Some(Forbidden::Namespace) => {
            let message = "this token may not count in this namespace; name it under namespaces in the token's entry of the tokens file";
            return Err(Problem::forbidden("namespace_not_allowed", field("namespace"), message.to_owned()));
        }
        Some(Forbidden::Cost(most)) => {
            let message = format!("this token allows a cost of at most {most} for one limit and identifier");
            return Err(Problem::forbidden("cost_not_allowed", field("cost"), message));
        }
        None => {}
    }
    match check.algorithm.zone().filter(|zone| !caller.may_use(*zone)) {
        Some(zone) => {
            let message = format!("this token does not allow zone {zone}");
            Err(Problem::forbidden("zone_not_allowed", field("zone"), message))
        }
        None => Ok(()),
    }
}
