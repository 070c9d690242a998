#pragma once

#include "transport/transport.h"

#include <ucp/api/ucp.h>

#include <optional>
#include <string_view>

namespace sluice::transport {

/// A link whose gets UCX carries out one-sidedly, named by the best guess from the endpoint's lanes.
LinkInfo one_sided_link(ucp_ep_h endpoint);
/// A link on which UCX has no one-sided get.
LinkInfo emulated_link(ucp_ep_h endpoint);

/// What UCX says about a get that it has just accepted and that is still in flight: it knows which lane it has chosen.
/// Nothing when it has not chosen yet.
std::optional<LinkInfo> link_of_get(void* request);

/// The part of link_of_get that reads UCX's sentence: "... get into host memory length 65536 zero-copy cma/memory ...".
std::optional<LinkInfo> link_from_description(std::string_view description);

}  // namespace sluice::transport
