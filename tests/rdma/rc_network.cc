// What tests run over in the guest: reliable connections of verbs devices, one per node. See guest/nodes.sh.
#include "runtime/base/settings.h"
#include "tests/transport/network.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/mount.h>
#include <system_error>
#include <unistd.h>

namespace sluice::test {
namespace {

// The devices of both nodes are visible everywhere, and only that of a thread's own node works.
std::string own_device() {
    for (const char* node : {"0", "1"}) {
        if (std::filesystem::exists(std::string("/sys/class/net/d") + node)) {
            return std::string("rxe") + node + ":1";
        }
    }
    throw std::runtime_error("neither node 0 nor node 1: run it by `ip netns exec n0`, see tests/rdma/guest/nodes.sh");
}

void must(int result, const char* what) {
    if (result != 0) {
        throw std::system_error(errno, std::generic_category(), what);
    }
}

}  // namespace

// The guest is emulated, on a machine that may be busy.
const std::chrono::seconds kPatience{60};
const std::chrono::seconds kPeersLimit{120};

std::vector<Network> ucx_networks() { return {Network::kUcxRc}; }

std::vector<Network> all_networks() { return ucx_networks(); }

transport::UcxOptions ucx_options(Network) {
    transport::UcxOptions options;
    // The defaults that users get, and what the environment says, on lanes that leave no way around verbs.
    options.settings = Settings::from_environment().value().ucx;
    options.settings.push_back({"TLS", "rc,self"});
    options.settings.push_back({"NET_DEVICES", own_device()});
    return options;
}

std::string link_name(Network) { return "rc_verbs/" + own_device(); }

std::chrono::milliseconds death_noticed_within(Network) { return std::chrono::seconds(15); }

void enter_node(int node) {
    const std::string name = "/run/netns/n" + std::to_string(node);
    const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    must(fd < 0 ? -1 : 0, name.c_str());
    must(::setns(fd, CLONE_NEWNET), "setns");
    ::close(fd);
    // /sys shows the network of whoever mounted it.
    must(::unshare(CLONE_NEWNS), "unshare");
    must(::mount("", "/", nullptr, MS_SLAVE | MS_REC, nullptr), "mount /");
    must(::mount("sysfs", "/sys", "sysfs", 0, nullptr), "mount /sys");
}

}  // namespace sluice::test
