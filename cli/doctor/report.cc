#include "cli/doctor/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cli {
namespace {

const char* to_string(Severity severity) {
    switch (severity) {
        case Severity::kGood:
            return "ok";
        case Severity::kNote:
            return "note";
        case Severity::kBad:
            return "bad";
    }
    return "bad";
}

}  // namespace

bool fit(const Examination& examination) {
    return !examination.links.empty() &&
           std::ranges::none_of(examine(examination), [](const Finding& f) { return f.severity == Severity::kBad; });
}

std::string doctor_page(const std::vector<Finding>& findings) {
    std::string page;
    for (const Finding& finding : findings) {
        page += fmt::format("{:<10} {:<5} {}\n", finding.subject, to_string(finding.severity), finding.what);
        if (!finding.remedy.empty()) {
            page += fmt::format("{:<10} {:<5}   remedy: {}\n", "", "", finding.remedy);
        }
    }
    return page;
}

nlohmann::json doctor_json(const Examination& examination, const std::vector<Finding>& findings) {
    nlohmann::json out = {{"schema", 1},
                          {"fit", fit(examination)},
                          {"ucx", {{"version", examination.ucx.version()}, {"path", examination.ucx.path}}},
                          {"findings", nlohmann::json::array()},
                          {"links", nlohmann::json::array()},
                          {"ports", nlohmann::json::array()},
                          {"gpus", nlohmann::json::array()}};
    for (const Finding& finding : findings) {
        out["findings"].push_back({{"subject", finding.subject},
                                   {"severity", to_string(finding.severity)},
                                   {"what", finding.what},
                                   {"remedy", finding.remedy}});
    }
    for (const TriedLink& link : examination.links) {
        out["links"].push_back({{"memory", sluice::to_string(link.memory)},
                                {"between_hosts", link.network_only},
                                {"transport", link.probe.transport},
                                {"one_sided", !link.emulated()},
                                {"bytes_per_second", link.probe.bytes_per_second},
                                {"problem", link.probe.problem}});
    }
    for (const VerbsPort& port : examination.node.ports) {
        out["ports"].push_back({{"name", port.name},
                                {"state", port.state},
                                {"link_layer", port.link_layer},
                                {"rate", port.rate},
                                {"numa_node", port.numa_node}});
    }
    for (const Gpu& gpu : examination.node.gpus) {
        out["gpus"].push_back({{"address", gpu.address}, {"model", gpu.model}, {"numa_node", gpu.numa_node}});
    }
    return out;
}

}  // namespace sluice::cli
