import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * The Java client as a peer: does what child.py does, with the same values, and prints the same
 * line. Its warm-up is longer, which its caller decides. Arguments: servers, topic, transactional
 * id, file of values, bytes of each, records of a transaction, partitions, least and most
 * transactions, seconds, seconds of warm-up; then settings as name=value.
 */
public final class JavaPeer {
    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final byte[][] pool;
    private final int records;
    private final int partitions;
    private List<Double> latencies = new ArrayList<>();
    private List<Double> commits = new ArrayList<>();

    private JavaPeer(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", args[2]);
        for (int i = 11; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        topic = args[1];
        pool = values(Files.readAllBytes(Path.of(args[3])), Integer.parseInt(args[4]));
        records = Integer.parseInt(args[5]);
        partitions = Integer.parseInt(args[6]);
        producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
    }

    public static void main(String[] args) throws Exception {
        JavaPeer peer = new JavaPeer(args);
        int least = Integer.parseInt(args[7]);
        int most = Integer.parseInt(args[8]);
        double warmSeconds = Double.parseDouble(args[10]);
        if (warmSeconds > 0) {
            peer.repeat(1, most, warmSeconds);
        }
        int warm = peer.latencies.size();
        peer.latencies = new ArrayList<>();
        peer.commits = new ArrayList<>();
        long began = System.nanoTime();
        long used = cpuNanos();
        peer.repeat(least, most, Double.parseDouble(args[9]));
        double cpu = (cpuNanos() - used) / 1e9;
        double seconds = (System.nanoTime() - began) / 1e9;
        peer.producer.close();
        System.out.printf(
                Locale.ROOT,
                "{\"version\": \"%s (Java %s)\", \"warm\": %d, \"transactions\": %d,"
                        + " \"seconds\": %.6f, \"cpu\": %.6f, \"latencies\": %s, \"commits\": %s,"
                        + " \"rss\": [], \"peaks\": []}%n",
                AppInfoParser.getVersion(),
                Runtime.version().feature(),
                warm,
                peer.latencies.size(),
                seconds,
                cpu,
                list(peer.latencies),
                list(peer.commits));
    }

    private void repeat(int least, int most, double seconds) {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        for (int count = 0; count < most; count++) {
            if (count >= least && System.nanoTime() >= end) {
                return;
            }
            long began = System.nanoTime();
            producer.beginTransaction();
            write();
            long written = System.nanoTime();
            producer.commitTransaction();
            long done = System.nanoTime();
            latencies.add((done - began) / 1e6);
            commits.add((done - written) / 1e6);
        }
    }

    private void write() {
        for (int i = 0; i < records; i++) {
            byte[] value = pool[i % pool.length];
            Integer partition = partitions > 1 ? Integer.valueOf(i % partitions) : null;
            producer.send(new ProducerRecord<>(topic, partition, null, value));
        }
    }

    private static byte[][] values(byte[] content, int size) {
        byte[][] found = new byte[content.length / size][];
        for (int i = 0; i < found.length; i++) {
            found[i] = Arrays.copyOfRange(content, i * size, (i + 1) * size);
        }
        return found;
    }

    private static long cpuNanos() {
        var system = ManagementFactory.getOperatingSystemMXBean();
        return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime();
    }

    private static String list(List<Double> numbers) {
        return numbers.stream()
                .map(number -> String.format(Locale.ROOT, "%.3f", number))
                .collect(Collectors.joining(", ", "[", "]"));
    }
}
