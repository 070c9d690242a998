#pragma once

#include "transport/transport.h"

#include <ucp/api/ucp.h>

#include <string_view>

namespace sluice::transport {

/// What the lanes of an endpoint let one expect of its gets of host memory. A guess: which lane a get takes is UCX's choice.
LinkInfo guess_link(ucp_ep_h endpoint);

/// What UCX says about a get that it has just accepted and that is still in flight. This is the truth: UCX has chosen.
/// Falls back to `guess` when it does not say.
LinkInfo link_of_get(void* request, const LinkInfo& guess);

/// The part of link_of_get that reads UCX's sentence: "... get into host memory length 65536 zero-copy cma/memory ..." or
/// "... software emulation tcp/lo ...".
LinkInfo link_from_description(std::string_view description, const LinkInfo& guess);

}  // namespace sluice::transport
