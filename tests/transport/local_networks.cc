#include "tests/transport/network.h"

namespace sluice::test {

const std::chrono::seconds kPatience{20};
const std::chrono::seconds kPeersLimit{30};

std::vector<Network> ucx_networks() { return {Network::kUcxTcp, Network::kUcxCma}; }

std::vector<Network> all_networks() {
    return {Network::kFakeOneSided, Network::kFakeEmulated, Network::kUcxTcp, Network::kUcxCma};
}

transport::UcxOptions ucx_options(Network network) {
    transport::UcxOptions options;
    options.settings = {{"RNDV_THRESH", "inf"},
                        {"NET_DEVICES", "lo"},
                        {"TLS", network == Network::kUcxTcp ? "tcp,self" : "tcp,cma,self"}};
    return options;
}

std::string link_name(Network network) {
    return network == Network::kUcxTcp ? "tcp/lo" : network == Network::kUcxCma ? "cma/memory" : "fake";
}

std::chrono::milliseconds death_noticed_within(Network) { return std::chrono::seconds(1); }

void enter_node(int) {}

}  // namespace sluice::test
