#include "runtime/exchange/catalogue_agreement.h"

#include "planner/catalogue_difference.h"
#include "runtime/exchange/setup.pb.h"
#include "runtime/exchange/setup_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr int kRuns = 64;
// What a name or shape that came over the wire may take.
constexpr std::size_t kLongestName = 4096;
constexpr int kMostDims = 64;

wire::CatalogueAnswer answer(const Catalogue& catalogue, const wire::CatalogueQuestion& question) {
    wire::CatalogueAnswer out;
    const auto size = static_cast<std::int64_t>(catalogue.size());
    const std::int64_t begin = std::clamp<std::int64_t>(question.begin(), 0, size);
    if (question.step() > 0) {
        const std::int64_t step = std::min(question.step(), size + 1);
        const auto digests = run_digests(catalogue, begin, step, std::clamp(question.count(), 0, kRuns));
        out.mutable_digests()->Add(digests.begin(), digests.end());
    } else if (begin < size) {
        const CatalogueTensor& tensor = catalogue[static_cast<TensorId>(begin)];
        out.set_present(true);
        out.set_name(tensor.name.substr(0, kLongestName));
        out.set_dtype(static_cast<int>(tensor.dtype));
        const auto dims = std::min<std::size_t>(tensor.shape.size(), kMostDims);
        out.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.begin() + static_cast<std::ptrdiff_t>(dims));
    }
    return out;
}

Result<wire::CatalogueAnswer> ask(Bootstrap& bootstrap, int root, int rank, std::int64_t begin, std::int64_t step,
                                  Deadline deadline) {
    wire::RankPlanMessage message;
    wire::CatalogueQuestion& question = *message.mutable_question();
    question.set_rank(rank);
    question.set_begin(begin);
    question.set_step(step);
    question.set_count(kRuns);
    const std::vector<Bootstrap::Blob> questions(static_cast<std::size_t>(bootstrap.size()), serialise(message));
    SLUICE_RETURN_IF_ERROR(bootstrap.scatter(root, questions, deadline).status());
    SLUICE_ASSIGN_OR_RETURN(const auto answers, bootstrap.gather(root, {}, deadline));
    wire::CatalogueAnswer out;
    SLUICE_RETURN_IF_ERROR(parse(answers[static_cast<std::size_t>(rank)], out));
    return out;
}

}  // namespace

Result<std::string> ask_for_difference(Bootstrap& bootstrap, int root, const Catalogue& catalogue, int rank,
                                       std::string_view their_name, Deadline deadline) {
    const auto size = static_cast<std::int64_t>(catalogue.size());
    std::int64_t begin = 0;
    // All before `begin` is equal; the first difference is in the next `length` places, or behind our end.
    std::int64_t length = size;
    do {
        const std::int64_t step = std::max<std::int64_t>(1, (length + kRuns - 1) / kRuns);
        SLUICE_ASSIGN_OR_RETURN(const wire::CatalogueAnswer theirs, ask(bootstrap, root, rank, begin, step, deadline));
        const auto mine = run_digests(catalogue, begin, step, kRuns);
        const auto differs = std::mismatch(mine.begin(), mine.end(), theirs.digests().begin(), theirs.digests().end());
        begin += step * (differs.first - mine.begin());
        if (differs.first == mine.end() || begin >= size) {
            begin = size;
            break;
        }
        length = step;
    } while (length > 1);
    SLUICE_ASSIGN_OR_RETURN(const wire::CatalogueAnswer last, ask(bootstrap, root, rank, begin, 0, deadline));
    std::optional<CatalogueTensor> theirs;
    if (last.present()) {
        const auto dtype = static_cast<DType>(last.dtype());
        if (last.name().size() > kLongestName || last.shape_size() > kMostDims || last.dtype() < 0 ||
            last.dtype() >= kDTypeCount) {
            return internal_error(fmt::format("{} answers with a tensor that cannot be", their_name));
        }
        theirs = CatalogueTensor{last.name(), dtype, Dims(last.shape().begin(), last.shape().end()), 0, {}};
    }
    return difference_at(catalogue, begin, theirs, fmt::format("rank {}", root), their_name);
}

Result<Bootstrap::Blob> receive_answering(Bootstrap& bootstrap, int root, const Catalogue& catalogue,
                                          Deadline deadline) {
    while (true) {
        SLUICE_ASSIGN_OR_RETURN(Bootstrap::Blob blob, bootstrap.scatter(root, {}, deadline));
        wire::RankPlanMessage message;
        SLUICE_RETURN_IF_ERROR(parse(blob, message));
        if (!message.has_question()) {
            return blob;
        }
        const bool mine = message.question().rank() == bootstrap.rank();
        const Bootstrap::Blob reply = mine ? serialise(answer(catalogue, message.question())) : Bootstrap::Blob();
        SLUICE_RETURN_IF_ERROR(bootstrap.gather(root, reply, deadline).status());
    }
}

}  // namespace sluice
