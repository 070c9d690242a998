#pragma once

#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"
#include "runtime/services/deadline.h"

namespace sluice {

/// Collective: every rank gives its own status and gets the same one back: ok when all are, otherwise that of the lowest rank that is
/// not, with its rank named when not all say the same.
Status agree_on_status(Bootstrap& bootstrap, const Status& mine, Deadline deadline);

}  // namespace sluice
