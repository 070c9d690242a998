#include "planner/plan_file_header.h"

#include "planner/plan.pb.h"
#include "planner/plan_frame.h"

#include <limits>

namespace sluice {

Result<PlanFileHeader> read_plan_file_header(std::string_view bytes) {
    SLUICE_ASSIGN_OR_RETURN(const std::string_view body, open_plan_message(PlanMessage::kPlanFile, bytes));
    wire::PlanFile message;
    if (body.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()) ||
        !message.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
        return invalid_argument("the plan file's body is no valid message; it was not written by this program");
    }
    PlanFileHeader header;
    header.model = message.model();
    header.trainer_layout = message.trainer_layout();
    header.worker_layouts.assign(message.worker_layouts().begin(), message.worker_layouts().end());
    header.catalogue_digest = message.catalogue_digest();
    header.fingerprint = message.fingerprint();
    header.limits = {static_cast<int>(message.trainers()), static_cast<int>(message.workers()),
                     static_cast<int>(message.groups()), static_cast<std::int64_t>(message.chunk_bytes())};
    for (int i = 0; i < message.demands_size(); ++i) {
        PlanFileHeader::Demand& demand = header.demands.emplace_back();
        demand.parameters = static_cast<std::size_t>(message.demands(i).parameters().names_size());
        demand.records = message.demands(i).records();
        if (i < message.routes_size()) {
            demand.chunks = static_cast<std::size_t>(message.routes(i).chunks().groups_size());
            demand.workers.assign(message.routes(i).workers().begin(), message.routes(i).workers().end());
        }
    }
    return header;
}

}  // namespace sluice
