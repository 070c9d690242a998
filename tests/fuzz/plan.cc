// The first byte says what the rest is: a whole frame, or the body of a frame of one of the kinds (a fuzzer does not find
// checksums). What decodes must encode to something that decodes to the same.
#include "planner/dry_run.h"
#include "planner/plan_codec.h"
#include "planner/plan_file_header.h"
#include "planner/plan_frame.h"
#include "planner/trainer_ownership.h"
#include "tests/fuzz/require.h"
#include "tests/planner/plan_execution.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::test {
namespace {

// The cluster that messages are checked against.
struct World {
    SmallModel model = small_model("Qwen3-0.6B", {{"num_hidden_layers", "1"},
                                                  {"hidden_size", "64"},
                                                  {"intermediate_size", "64"},
                                                  {"num_attention_heads", "4"},
                                                  {"num_key_value_heads", "2"},
                                                  {"head_dim", "16"},
                                                  {"vocab_size", "100"}});
    std::vector<Ownership> owners;
    Demand demand;
    PlanLimits limits;

    World() {
        const TrainerLayout trainers = *TrainerLayout::parse("tp=2");
        for (int rank = 0; rank < trainers.world_size(); ++rank) {
            owners.push_back(*trainer_ownership(model.catalogue, model.config, trainers, rank, SourceKind::kGathered));
        }
        demand = *dry_run(model.catalogue, model.config, *WorkerLayout::parse("tp=2"), 0);
        limits = {2, 2, model.catalogue.groups(), 4096};
    }
};

template <class Message, class Encode, class Decode>
void check(std::string_view frame, const Encode& encode, const Decode& decode) {
    const Result<Message> message = decode(frame);
    if (!message.ok()) {
        require(message.status().message().find('\n') == std::string::npos, "an error is one line");
        return;
    }
    const std::string bytes = encode(*message);
    const Result<Message> again = decode(bytes);
    require(again.ok(), "what decodes can be encoded and decoded again");
    require(encode(*again) == bytes, "encoding is deterministic and loses nothing");
}

void check(PlanMessage kind, std::string_view frame) {
    static const World world;
    switch (kind) {
        case PlanMessage::kDemand:
            return check<Demand>(frame, encode_demand,
                                 [&](std::string_view b) { return decode_demand(b, world.model.catalogue); });
        case PlanMessage::kOwnership:
            return check<Ownership>(frame, encode_ownership,
                                    [&](std::string_view b) { return decode_ownership(b, world.model.catalogue); });
        case PlanMessage::kRoute:
            return check<Route>(frame, encode_route, [&](std::string_view b) {
                return decode_route(b, world.limits, world.demand.parameters, world.owners);
            });
        case PlanMessage::kOwnerRoute:
            return check<OwnerRoute>(frame, encode_owner_route, [&](std::string_view b) {
                return decode_owner_route(b, world.limits, world.owners[1]);
            });
        case PlanMessage::kPlanFile:
            if (const auto header = read_plan_file_header(frame); !header.ok()) {
                require(header.status().message().find('\n') == std::string::npos, "an error is one line");
            }
            check<PlanFile>(frame, encode_plan_file, [](std::string_view b) { return decode_plan_file(b); });
            return check<PlanFile>(frame, encode_plan_file,
                                   [&](std::string_view b) { return decode_plan_file(b, world.model.catalogue); });
    }
}

}  // namespace
}  // namespace sluice::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using sluice::PlanMessage;
    constexpr int kKinds = 5;
    if (size == 0) {
        return 0;
    }
    const auto kind = static_cast<PlanMessage>(1 + data[0] % kKinds);
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    const bool whole_frame = data[0] / kKinds % 8 == 7;
    sluice::test::check(kind, whole_frame ? std::string(rest) : sluice::seal_plan_message(kind, rest));
    return 0;
}
