# What the stand-in for MySQL's image starts: as the official image does, it makes a database and an account when its
# folder is empty, by MYSQL_DATABASE, MYSQL_USER and MYSQL_PASSWORD, and serves.
set -eu
data=/var/lib/mysql
small="--performance-schema=OFF --innodb-redo-log-capacity=8M --innodb-buffer-pool-size=64M --mysqlx=OFF --secure-file-priv="

mkdir -p "$data" /tmp
if [ ! -d "$data/mysql" ]; then
    mysqld --no-defaults --initialize-insecure --user=root --datadir="$data" $small
fi
cat >/tmp/init.sql <<SQL
CREATE DATABASE IF NOT EXISTS $MYSQL_DATABASE;
CREATE USER IF NOT EXISTS '$MYSQL_USER'@'%' IDENTIFIED BY '$MYSQL_PASSWORD';
GRANT ALL ON $MYSQL_DATABASE.* TO '$MYSQL_USER'@'%';
SQL
exec mysqld --no-defaults --user=root --datadir="$data" --socket=/tmp/socket --init-file=/tmp/init.sql $small
