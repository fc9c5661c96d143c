// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_uploads.h"

#include <charconv>
#include <span>
#include <utility>

#include "wire/multipart.h"

namespace loralei {
namespace {

constexpr int kDiskThreads = 2, kFetchThreads = 2;
constexpr size_t kDiskJobs = 4096, kFetchJobs = 256;
constexpr int kUploadsMost = 16;      // at once
constexpr size_t kFieldBytes = 1024;  // of a form's field that is no file
constexpr size_t kSendBytes = 64 * 1024;

Error too_busy(const char* what) {
  return {ErrorCode::kOverloaded, std::string("Too many ") + what + " are under way; try again in a moment."};
}

// Clients may send a path for a name; what counts is its last part.
std::string last_part(const std::string& filename) {
  const size_t slash = filename.find_last_of("/\\");
  return slash == std::string::npos ? filename : filename.substr(slash + 1);
}

// The first byte that "bytes=N-" asks for; 0: anything else, which is answered with all.
int64_t range_begin(std::string_view range) {
  constexpr std::string_view kUnit = "bytes=";
  int64_t from = 0;
  if (!range.starts_with(kUnit)) return 0;
  range.remove_prefix(kUnit.size());
  const auto [end, error] = std::from_chars(range.data(), range.data() + range.size(), from);
  return error == std::errc() && end == range.data() + range.size() - 1 && *end == '-' && from > 0 ? from : 0;
}

}  // namespace

// One form on its way. Told on a disk thread, a piece at a time.
class AdapterUploads::Upload final : public BodySink,
                                     public MultipartListener,
                                     public std::enable_shared_from_this<Upload> {
 public:
  Upload(AdapterUploads& uploads, const HttpHead& head) : uploads_(uploads) {
    const bool first = ++uploads_.uploads_ <= kUploadsMost;
    auto boundary = MultipartParser::boundary_of(head.header("content-type"));
    if (!first) {
      failed_ = too_busy("uploads");
    } else if (!boundary.ok()) {
      failed_ = boundary.error();
    } else {
      parser_ = std::make_unique<MultipartParser>(*boundary, *this);
      draft_ = uploads_.use_.store->draft();
    }
  }
  ~Upload() override { --uploads_.uploads_; }

  int64_t max_bytes() const override { return uploads_.use_.max_upload_bytes; }
  void take(std::string piece, std::function<void(bool)> done) override {
    const auto work = [self = shared_from_this(), piece = std::move(piece), done] {
      if (self->failed_.ok()) self->failed_ = self->parser_->feed(piece);
      done(self->failed_.ok());
    };
    if (uploads_.run(uploads_.disk_, work)) return;
    failed_ = too_busy("uploads");
    done(false);
  }
  Result<UploadedAdapter> finish() {
    TRY(failed_);
    TRY(parser_->finish());
    const auto known = [this](const std::string& digest) { return uploads_.use_.store->find(digest).has_value(); };
    const auto manifest = AdapterManifest::make(draft_->files());
    if (manifest.ok()) form_.fresh = !known(manifest->digest());
    TRY_ASSIGN(form_.manifest, draft_->commit());
    draft_.reset();
    return form_;
  }

 private:
  Status on_part(const MultipartPart& part) override {
    field_ = part.is_file ? "" : part.name;
    value_.clear();
    if (part.is_file) return draft_->begin(last_part(part.filename));
    if (part.name == "name" || part.name == "lora_name" || part.name == "load_inplace" || part.name == "pinned")
      return {};
    return invalid_argument("The form's field '" + part.name.substr(0, 80) +
                            "' is none of name, load_inplace and pinned; files have a filename beside their bytes, as "
                            "curl -F 'file=@adapter_config.json' sends it.");
  }
  Status on_data(std::string_view bytes) override {
    if (field_.empty()) return draft_->write(std::as_bytes(std::span(bytes)));
    value_ += bytes;
    if (value_.size() <= kFieldBytes) return {};
    return invalid_argument("The form's field '" + field_ + "' is longer than " + std::to_string(kFieldBytes) +
                            " bytes.");
  }
  Status on_part_end() override {
    if (field_.empty()) return draft_->end();
    if (field_ == "name" || field_ == "lora_name") {
      form_.name = value_;
      return value_.empty() ? Status(invalid_argument("The form's field '" + field_ +
                                                      "' is empty; leave it out to store the adapter only."))
                            : Status();
    }
    if (value_ != "true" && value_ != "false")
      return invalid_argument("The form's field '" + field_ + "' is true or false.");
    (field_ == "pinned" ? form_.pinned : form_.load_inplace) = value_ == "true";
    return {};
  }

  AdapterUploads& uploads_;
  Status failed_;
  std::unique_ptr<AdapterDraft> draft_;
  std::unique_ptr<MultipartParser> parser_;
  UploadedAdapter form_;
  std::string field_, value_;
};

AdapterUploads::AdapterUploads(const AdapterStoreUse& use)
    : use_(use), disk_(kDiskThreads, kDiskJobs, "store"), fetches_(kFetchThreads, kFetchJobs, "fetch") {}

void AdapterUploads::stop() {
  if (use_.peers != nullptr) use_.peers->stop();
  fetches_.stop();
  disk_.stop();
}

bool AdapterUploads::run(TextPool& pool, std::function<void()> work) {
  return pool.try_run({.run = [work = std::move(work)](Work&) { work(); }});
}

std::shared_ptr<BodySink> AdapterUploads::begin(const HttpHead& head) { return std::make_shared<Upload>(*this, head); }

void AdapterUploads::finish(const std::shared_ptr<BodySink>& sink, std::function<void(Result<UploadedAdapter>)> done) {
  const auto upload = std::dynamic_pointer_cast<Upload>(sink);
  CHECK(upload != nullptr);
  if (!run(disk_, [upload, done] { done(upload->finish()); })) done(too_busy("uploads"));
}

// A blob being sent: a piece is read when there is room for it.
struct AdapterUploads::Sending {
  std::shared_ptr<Reply> reply;
  std::unique_ptr<File> file;
  int64_t at = 0;
};

void AdapterUploads::send_blob(std::shared_ptr<Reply> reply, const std::string& sha256, std::string_view range) {
  auto file = use_.store->blob(sha256);
  if (!file.ok()) return reply->refuse(to_api_error(file.error()));
  const int64_t bytes = (*file)->size_bytes(), from = range_begin(range);
  HttpHeaders headers = {{"Accept-Ranges", "bytes"}, {"ETag", "\"" + sha256 + "\""}};
  if (from >= bytes && from > 0) {
    headers.emplace_back("Content-Range", "bytes */" + std::to_string(bytes));
    return reply->refuse(api_error_of_status(416, "The blob has " + std::to_string(bytes) + " bytes."), headers);
  }
  if (from > 0) {
    headers.emplace_back("Content-Range", "bytes " + std::to_string(from) + "-" + std::to_string(bytes - 1) + "/" +
                                              std::to_string(bytes));
  }
  if (!reply->start(from > 0 ? 206 : 200, "application/octet-stream", std::move(headers))) return;
  auto sending = std::make_shared<Sending>(Sending{std::move(reply), std::move(*file), from});
  run(disk_, [this, sending] { send_some(sending); });  // dropped, the stream is cut
}

void AdapterUploads::send_some(const std::shared_ptr<Sending>& sending) {
  ResponseWriter& writer = sending->reply->writer();
  std::string piece;
  while (sending->at < sending->file->size_bytes()) {
    if (!writer.wants_more()) {
      // An I/O thread: it hands on.
      return writer.on_room([this, sending] { run(disk_, [this, sending] { send_some(sending); }); });
    }
    piece.resize(static_cast<size_t>(std::min<int64_t>(kSendBytes, sending->file->size_bytes() - sending->at)));
    if (!sending->file->read_exact(sending->at, std::as_writable_bytes(std::span(piece))).ok()) return;
    if (!writer.write(piece)) return;
    sending->at += std::ssize(piece);
  }
  writer.finish();
}

void put_manifest(const AdapterManifest& manifest, JsonOut& out) {
  out.key("digest").string(manifest.digest()).key("path").string(store_name(manifest));
  out.key("bytes").number(manifest.bytes()).key("files").begin_array();
  for (const StoredFile& file : manifest.files) {
    out.begin_object().key("name").string(file.name).key("bytes").number(file.bytes);
    out.key("sha256").string(file.sha256).end_object();
  }
  out.end_array();
}

std::string AdapterUploads::list() const {
  JsonOut out;
  out.begin_object().key("object").string("list").key("data").begin_array();
  for (const AdapterManifest& manifest : use_.store->list()) {
    out.begin_object();
    put_manifest(manifest, out);
    out.end_object();
  }
  out.end_array().end_object();
  return out.take();
}

AdapterStoreFigures AdapterUploads::figures() const {
  const AdapterStore::Stats here = use_.store->stats();
  AdapterStoreFigures figures{.adapters = static_cast<int64_t>(here.adapters), .bytes = here.bytes};
  if (use_.peers == nullptr) return figures;
  const AdapterPeers::Stats fetches = use_.peers->stats();
  figures.fetched = fetches.fetched;
  figures.failed = fetches.failed;
  figures.fetched_bytes = fetches.bytes;
  return figures;
}

std::string AdapterUploads::missing(const std::string& path) const {
  if (use_.store == nullptr || use_.peers == nullptr) return "";
  const auto name = parse_store_name(path);
  return name.ok() && !use_.store->find(name->digest) ? name->digest : "";
}

bool AdapterUploads::is_elsewhere(const std::string& path) const {
  if (use_.store == nullptr) return false;
  const std::string digest = use_.store->digest_of(path);
  return !digest.empty() && !use_.store->find(digest);
}

void AdapterUploads::fetch(const std::string& digest, std::function<void(const Status&)> done) {
  CHECK(use_.peers != nullptr);
  if (!run(fetches_, [this, digest, done] { done(use_.peers->fetch(digest)); })) done(too_busy("fetches"));
}

void AdapterUploads::remove(const std::string& digest) {
  if (use_.store == nullptr) return;
  run(disk_, [this, digest] { (void)use_.store->remove_unused(digest); });
}

std::string store_name(const AdapterManifest& manifest) {
  const std::string weights = manifest.weights_name();
  return std::string(kStorePrefix) + manifest.digest() + (weights.empty() ? "" : "/" + weights);
}

Result<StoreName> parse_store_name(std::string_view path) {
  const Error wrong = invalid_argument(
      "'" + std::string(path.substr(0, 100)) +
      "' names no adapter of the store: write store: and the digest that its upload was answered with.");
  if (!path.starts_with(kStorePrefix)) return wrong;
  path.remove_prefix(kStorePrefix.size());
  StoreName name{std::string(path.substr(0, 64)), ""};
  if (!is_sha256_hex(name.digest)) return wrong;
  path.remove_prefix(64);
  if (path.empty()) return name;
  if (!path.starts_with('/') || !path.ends_with(".gguf") || !check_adapter_file(path.substr(1)).ok()) return wrong;
  name.weights = path.substr(1);
  return name;
}

}  // namespace loralei
