// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_pull.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/printable.h"
#include "base/units.h"
#include "hub/hub_blob.h"
#include "hub/hub_connection.h"
#include "hub/hub_listing.h"
#include "sys/file_lock.h"
#include "sys/hub_folder.h"
#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr auto kLockPoll = std::chrono::milliseconds(200);
constexpr int64_t kSpareBytes = 64 * kMiB;                   // of the disk, left free
constexpr int64_t kMaxPullBytes = int64_t{8} * 1024 * kGiB;  // of one model

std::string encoded_path(const std::string& path) {
  std::string out;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    out += "/" + percent_encode(std::string_view(path).substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// "../../blobs/DIGEST" from a file of a snapshot; more for one in a folder below it.
std::string link_target(const std::string& path, const std::string& digest) {
  std::string up = "../../";
  for (const char c : path) up += c == '/' ? "../" : "";
  return up + "blobs/" + digest;
}

class Puller {
 public:
  Puller(const HubSettings& settings, const HubName& name, HubKind kind, const HubReport& report)
      : settings_(settings),
        name_(name),
        kind_(kind),
        report_(report),
        network_(settings),
        workers_(network_, settings.connections),
        folder_(join_path(settings.cache_dir, hub_folder_of(name.repository))),
        blobs_(join_path(folder_, "blobs")) {}

  Result<HubPlace> run() {
    TRY(list());
    std::vector<std::string> all;
    for (const HubFile& file : listing_.files) all.push_back(file.path);
    TRY_ASSIGN(const HubChoice choice, choose_hub_files(all, name_, kind_));
    for (const std::string& path : choice.files) {
      if (!is_here(path)) wanted_.push_back({path, "", 0});
    }
    TRY(ask_for_heads());
    TRY(plan(choice.files.size()));
    TRY(fetch_all());
    if (!is_commit(name_.revision)) TRY(put_ref());
    return HubPlace{choice.gguf.empty() ? snapshot() : join_path(snapshot(), choice.gguf), name_.repository,
                    listing_.commit, choice.adapter};
  }

 private:
  std::string snapshot() const { return join_path(folder_, "snapshots/" + listing_.commit); }
  HttpUrl url_of(const std::string& target) const {
    HttpUrl url = settings_.endpoint;
    url.target += target;
    return url;
  }
  HttpUrl file_url(const std::string& path) const {
    return url_of("/" + name_.repository + "/resolve/" + listing_.commit + encoded_path(path));
  }
  std::string what() const { return name_.repository + (name_.revision == "main" ? "" : "@" + name_.revision); }

  // Asks until there is a good answer, or none can be had.
  Result<HubAnswer> ask(HubConnection& connection, std::string_view method, const HttpUrl& url,
                        const std::string& wanted, const HubConnection::OnBody& on_body,
                        const std::function<void()>& again, const HubConnection::Enough& enough = nullptr) {
    HubPatience patience(settings_);
    for (;;) {
      again();
      auto answer = connection.ask(method, url, {}, on_body, enough);
      const bool good = answer.ok() && (answer->status < 300 || (answer->status < 400 && enough));
      if (good) return answer;
      Error error = answer.ok() ? hub_refusal(settings_, *answer, name_.repository, wanted) : answer.error();
      if (!patience.again(error, answer.ok() ? retry_after_ms(*answer) : 0, workers_.stop())) return error;
    }
  }

  Status list() {
    HubConnection connection(network_);
    const HttpUrl url =
        url_of("/api/models/" + name_.repository + "/revision/" + percent_encode(name_.revision) + "?blobs=true");
    std::string text;
    bool too_long = false;
    const auto take = [&](const HubAnswer&, std::string_view piece) {
      too_long = static_cast<int64_t>(text.size() + piece.size()) > kMaxHubListBytes;
      if (!too_long) text += piece;
      return !too_long;
    };
    const auto answer = ask(connection, "GET", url, what(), take, [&] { text.clear(); });
    if (too_long)
      return too_large("The hub's list of " + what() + " is longer than " + format_bytes(kMaxHubListBytes) + ".");
    if (!answer.ok()) return answer.error();
    TRY_ASSIGN(listing_, parse_hub_listing(text, "The hub's list of " + what()));
    if (is_commit(name_.revision) && listing_.commit != name_.revision)
      return corrupt("The hub's list of " + what() + " is of another commit, " + listing_.commit + ".");
    return {};
  }

  // In the snapshot, with the size that the hub says.
  bool is_here(const std::string& path) const {
    const PosixFileSystem files;
    const auto stamp = files.stamp(join_path(snapshot(), path));
    const HubFile* const listed = listing_.find(path);
    return stamp.ok() && (listed->bytes < 0 || listed->bytes == stamp->size_bytes);
  }

  Status ask_for_heads() {
    return workers_.run(
        wanted_.size(), [this](HubConnection& connection, size_t i) { return ask_for_head(connection, wanted_[i]); },
        nullptr);
  }

  Status ask_for_head(HubConnection& connection, HubBlob& blob) {
    const auto linked = [](const HubAnswer& answer) { return !answer.header("x-linked-etag").empty(); };
    const auto none = [](const HubAnswer&, std::string_view) { return false; };
    TRY_ASSIGN(const HubAnswer answer, ask(
                                           connection, "HEAD", file_url(blob.path),
                                           printable(blob.path) + " of " + what(), none, [] {}, linked));
    const std::string place = printable(blob.path);
    const std::string_view commit = answer.header("x-repo-commit");
    if (!commit.empty() && commit != listing_.commit)
      return corrupt(place + ": the hub answers from another commit than the one that was asked for.");
    auto digest = parse_hub_digest(linked(answer) ? answer.header("x-linked-etag") : answer.header("etag"));
    if (!digest.ok()) return std::move(digest).error().with_context(place);
    blob.digest = std::move(*digest);
    const int64_t listed = listing_.find(blob.path)->bytes;
    const std::string_view said = linked(answer) ? answer.header("x-linked-size") : answer.header("content-length");
    blob.bytes = said.empty() ? listed : parse_size(said);
    if (blob.bytes < 0 || blob.bytes > kMaxPullBytes) return corrupt(place + ": the hub does not say how large it is.");
    if (listed >= 0 && listed != blob.bytes)
      return corrupt(place + ": the hub says two sizes, " + std::to_string(listed) + " and " +
                     std::to_string(blob.bytes) + " bytes.");
    return {};
  }

  static int64_t parse_size(std::string_view text) {
    const bool digits = !text.empty() && text.size() <= 18 &&
                        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    return digits ? std::stoll(std::string(text)) : -1;
  }

  bool has_blob(const HubBlob& blob) const {
    const auto stamp = PosixFileSystem().stamp(join_path(blobs_, blob.digest));
    return stamp.ok() && stamp->size_bytes == blob.bytes;
  }

  // What will be fetched, and whether there is room for it.
  Status plan(size_t files) {
    TRY(make_folders(blobs_));
    TRY(make_folders(locks()));
    int64_t here = 0;
    for (const HubBlob& blob : wanted_) {
      total_ += blob.bytes;
      if (total_ > kMaxPullBytes)
        return too_large(name_.text() + " has more than " + format_bytes(kMaxPullBytes) + ".");
      counted_.push_back(has_blob(blob) ? blob.bytes : hub_blob_arrived(blobs_, blob, settings_.piece_bytes));
      here += counted_.back();
    }
    arrived_ = here;
    if (wanted_.empty()) {
      report_.say(name_.text() + " is up to date (commit " + listing_.commit.substr(0, 8) + ", " +
                  std::to_string(files) + " files)");
      return {};
    }
    report_.say(name_.text() + ", commit " + listing_.commit.substr(0, 8) + ": " + std::to_string(wanted_.size()) +
                " of " + std::to_string(files) + " files, " + format_bytes(total_) +
                (here > 0 ? ", of which " + format_bytes(here) + " are here already" : ""));
    for (const HubBlob& blob : wanted_) report_.say("  " + format_bytes(blob.bytes) + "  " + printable(blob.path));
    const int64_t free = free_disk_bytes(blobs_), needed = total_ - here;
    if (free >= 0 && needed > 0 && needed + kSpareBytes > free) {
      return io_error(name_.text() + " needs " + format_bytes(needed) + " more, but " + settings_.cache_dir + " has " +
                      format_bytes(free) + " left: make room, or name another folder in HF_HUB_CACHE");
    }
    return {};
  }

  std::string locks() const { return join_path(settings_.cache_dir, ".locks/" + hub_folder_of(name_.repository)); }

  Status fetch_all() {
    const auto tick = [this] { report_.progress(arrived_, total_); };
    tick();
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const HubBlob& blob = wanted_[i];
      TRY_ASSIGN(const FileLock lock, lock_of(blob));
      if (has_blob(blob)) {
        arrived_ += blob.bytes - counted_[i];
      } else {
        TRY(fetch_hub_blob(
            {network_, workers_, name_.repository, file_url(blob.path), blob, blobs_, arrived_, counted_[i], tick}));
      }
      const std::string path = join_path(snapshot(), blob.path);
      TRY(make_folders(parent_path(path)));
      TRY(put_link(link_target(blob.path, blob.digest), path));
    }
    return {};
  }

  // The lock of a blob, when whoever has it is done.
  Result<FileLock> lock_of(const HubBlob& blob) {
    for (bool said = false;; said = true) {
      TRY_ASSIGN(std::optional<FileLock> lock, FileLock::take(join_path(locks(), blob.digest + ".lock")));
      if (lock) return std::move(*lock);
      if (!said) report_.say(printable(blob.path) + ": another process fetches it; waiting for that");
      std::this_thread::sleep_for(kLockPoll);
    }
  }

  // Written beside it and renamed: never half a name.
  Status put_ref() const {
    const std::string path = join_path(folder_, "refs/" + name_.revision);
    TRY(make_folders(parent_path(path)));
    if (hub_commit(PosixFileSystem(), folder_, name_.revision) == listing_.commit) return {};
    TRY_ASSIGN(const FileLock lock, lock_ref());
    const std::string fresh = join_path(folder_, "loralei-ref");
    TRY_ASSIGN(WriteFile file, WriteFile::open(fresh));
    TRY(file.resize(0));
    TRY(file.write(0, std::as_bytes(std::span(listing_.commit))));
    return file.commit(path);
  }

  Result<FileLock> lock_ref() const {
    for (;;) {
      TRY_ASSIGN(std::optional<FileLock> lock, FileLock::take(join_path(locks(), "loralei-ref.lock")));
      if (lock) return std::move(*lock);
      std::this_thread::sleep_for(kLockPoll);
    }
  }

  const HubSettings& settings_;
  const HubName& name_;
  const HubKind kind_;
  const HubReport& report_;
  const HubNetwork network_;
  HubWorkers workers_;
  const std::string folder_, blobs_;
  HubListing listing_;
  std::vector<HubBlob> wanted_;
  std::vector<int64_t> counted_;  // of each, what was here at the start
  int64_t total_ = 0;
  std::atomic<int64_t> arrived_{0};
};

}  // namespace

Result<HubPlace> pull_from_hub(const HubSettings& settings, const HubName& name, HubKind kind,
                               const HubReport& report) {
  if (settings.offline) {
    CachedHubModel cached = find_in_hub_cache(PosixFileSystem(), settings.cache_dir, name, kind);
    if (cached.place) return std::move(*cached.place);
    return not_found(cached.missing + ", and the hub is not asked (--offline, or HF_HUB_OFFLINE).");
  }
  return Puller(settings, name, kind, report).run();
}

Result<HubPlace> find_or_pull(const HubSettings& settings, const HubName& name, HubKind kind, const HubReport& report) {
  CachedHubModel cached = find_in_hub_cache(PosixFileSystem(), settings.cache_dir, name, kind);
  if (cached.place) return std::move(*cached.place);
  return pull_from_hub(settings, name, kind, report);
}

Result<std::optional<HubName>> name_meant_by(const FileSystem& files, const std::string& text) {
  if (files.exists(text)) return std::optional<HubName>();
  if (text.ends_with(".gguf") && text.find(':') == std::string::npos) return std::optional<HubName>();
  return parse_hub_name(text);
}

Result<HubPlace> place_meant_by(const HubSettings& settings, const std::string& text, const HubName& name, HubKind kind,
                                const HubReport& report) {
  auto place = find_or_pull(settings, name, kind, report);
  if (place.ok() || text.starts_with("hf://")) return place;
  Error error = std::move(place).error();
  error.message =
      "'" + printable(text) + "' does not exist on this machine, and as a name on the hub: " + error.message;
  return error;
}

}  // namespace loralei
